"""A head: queries and keys in the precision they will run in, and the attention that they give.

Every head can be written in the form of the theorem of arXiv:2106.03764: an input X = [queries keys] and two
projections W_Q = [I; 0], W_K = [0; I] that are fixed once and for all. Only X depends on the pattern.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.heads.pattern import Pattern

QueryTensor = Float[Tensor, "row width"]
KeyTensor = Float[Tensor, "key width"]


@dataclass(frozen=True, eq=False)
class Head:
    """A head whose row i is the softmax of `scale * queries[i] . keys[j]` over the keys j that it may see."""

    queries: QueryTensor
    keys: KeyTensor
    causal: bool
    method: str
    notes: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        queries: Float[np.ndarray, "row width"],
        keys: Float[np.ndarray, "key width"],
        dtype: str,
        causal: bool,
        method: str,
        notes: Mapping[str, Any],
    ) -> Head:
        """Make a head from queries and keys such as `arrays` returns."""
        precision: torch.dtype = getattr(torch, dtype)
        return cls(torch.tensor(queries, dtype=precision), torch.tensor(keys, dtype=precision), causal, method, notes)

    def arrays(self) -> tuple[Float[np.ndarray, "row width"], Float[np.ndarray, "key width"]]:
        """Return queries and keys for numpy, which has no bfloat16: exact, in float32 or float64."""
        queries, keys = (tensor.detach().cpu().to(self._exact).numpy() for tensor in (self.queries, self.keys))
        return queries, keys

    @property
    def n(self) -> int:
        return self.queries.shape[0]

    @property
    def width(self) -> int:
        return self.queries.shape[1]

    @property
    def dtype(self) -> str:
        return str(self.queries.dtype).removeprefix("torch.")

    @property
    def scale(self) -> float:
        """The factor of all logits, 1 / sqrt(width) as usual."""
        return float(self.width**-0.5)

    @property
    def _exact(self) -> torch.dtype:
        return torch.float64 if self.queries.dtype == torch.float64 else torch.float32

    def logits(self, first: int = 0, last: int | None = None) -> Float[Tensor, "some_rows key"]:
        """Return the logits of rows `first` to `last - 1`, summed in float32 (float64 for float64 heads); -inf if
        hidden.
        """
        logits = self.queries[first:last].to(self._exact) @ self.keys.to(self._exact).T * self.scale
        if self.causal:
            query = torch.arange(first, first + len(logits))[:, None]
            logits = logits.masked_fill(torch.arange(len(self.keys)) > query, -torch.inf)
        return logits

    def attention(self, first: int = 0, last: int | None = None) -> Float[Tensor, "some_rows key"]:
        return self.logits(first, last).softmax(-1)

    def inputs(self) -> tuple[Float[Tensor, "row twice"], Float[Tensor, "twice width"], Float[Tensor, "twice width"]]:
        """Return X, W_Q, W_K of the theorem: queries are X W_Q, keys X W_K, and only X depends on the pattern."""
        if len(self.queries) != len(self.keys):
            raise RefusalError(
                f"A head with {len(self.queries)} queries and {len(self.keys)} keys has no single input X: use its "
                "queries and keys."
            )
        select = torch.eye(2 * self.width, dtype=self.queries.dtype)
        return torch.cat([self.queries, self.keys], dim=1), select[:, : self.width], select[:, self.width :]

    def module(self) -> HeadModule:
        """Return the head as a torch module that realises its pattern on its own X."""
        return HeadModule(*self.inputs(), causal=self.causal)


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of one or more patterns as torch tensors, to be solved together.

    Unused slots of a support repeat its first key and are not `real`. `last` is the last key that a row sees; None if
    every row sees every key.
    """

    support: Int[Tensor, "row k"]
    logs: Float[Tensor, "row k"]
    real: Bool[Tensor, "row k"]
    last: Int[Tensor, " row"] | None = None

    @classmethod
    def of(cls, patterns: Sequence[Pattern]) -> Rows:
        """Return all rows of all patterns, one after the other."""
        k, count = max(pattern.k for pattern in patterns), sum(pattern.n for pattern in patterns)
        support = np.empty((count, k), dtype=np.int64)
        weights, real = np.ones((count, k)), np.zeros((count, k), dtype=bool)
        first = 0
        for pattern in patterns:
            rows, own = slice(first, first + pattern.n), pattern.k
            keys, shares, present = pattern.padded()
            support[rows, :own], weights[rows, :own], real[rows, :own] = keys, shares, present
            support[rows, own:] = keys[:, :1]
            first += pattern.n
        last = None
        if any(pattern.causal for pattern in patterns):
            seen = [np.arange(p.n) if p.causal else np.full(p.n, p.n_keys - 1) for p in patterns]
            last = torch.from_numpy(np.concatenate(seen))
        return cls(torch.from_numpy(support), torch.from_numpy(weights).log(), torch.from_numpy(real), last)

    def __len__(self) -> int:
        return len(self.support)

    def __getitem__(self, some: Tensor | slice) -> Rows:
        last = None if self.last is None else self.last[some]
        return Rows(self.support[some], self.logs[some], self.real[some], last)

    def pattern(self, n_keys: int) -> Pattern:
        """Return the rows as a separate pattern."""
        starts = np.concatenate([[0], np.cumsum(self.real.sum(1).numpy())])
        return Pattern(starts, self.support[self.real].numpy(), self.logs[self.real].exp().numpy(), n_keys)

    def hide(self, values: Float[Tensor, "row key"], hidden: float) -> None:
        """Overwrite entries on the support or behind the causal mask with `hidden`: only visible zeros keep their
        value.
        """
        values.scatter_(1, self.support, hidden)
        if self.last is not None:
            values.masked_fill_(torch.arange(values.shape[1]) > self.last[:, None], hidden)


class HeadModule(nn.Module):
    """The head as a module: softmax(X W_Q W_K^T X^T / sqrt(width)), with a causal mask if the head has one.

        module = head.module()
        module()                     # the attention pattern, [row, key]
        module(value=v)              # attention applied to values, [row, value_width]
        module(X=other)              # the same projections, on another input (arXiv:2106.03764)

    X, W_Q and W_K are buffers: `module.to(device)` moves them, `state_dict` saves them, no optimiser touches them.
    """

    X: Tensor
    W_Q: Tensor
    W_K: Tensor

    def __init__(
        self,
        X: Float[Tensor, "row twice"],
        W_Q: Float[Tensor, "twice width"],
        W_K: Float[Tensor, "twice width"],
        causal: bool,
    ) -> None:
        super().__init__()
        for name, tensor in (("X", X), ("W_Q", W_Q), ("W_K", W_K)):
            self.register_buffer(name, tensor.clone())
        self.causal = causal

    def forward(
        self,
        X: Float[Tensor, "*batch row twice"] | None = None,
        value: Float[Tensor, "*batch2 row value_width"] | None = None,
    ) -> Float[Tensor, "*any row answer"]:
        """Return the mixed values; without values, the pattern itself."""
        X = self.X if X is None else X
        # W_Q and W_K only select columns, so these products are exact in any precision. Logits and softmax are then
        # computed in float32 or more, as in the certificate: a bfloat16 head rounds only queries and keys to bfloat16.
        exact = torch.float64 if X.dtype == torch.float64 else torch.float32
        query, key = (X @ self.W_Q).to(exact), (X @ self.W_K).to(exact)
        mixing = torch.eye(X.shape[-2], dtype=exact, device=X.device) if value is None else value.to(exact)
        mixing = mixing.expand(*query.shape[:-2], *mixing.shape[-2:]) if mixing.ndim < query.ndim else mixing
        mixed = F.scaled_dot_product_attention(query, key, mixing, is_causal=self.causal)
        return mixed if value is None else mixed.to(value.dtype)
