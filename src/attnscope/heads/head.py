"""A head: queries and keys in the precision they will run in, and what softmax makes of them.

Every head can be written in the form of the theorem of arXiv:2106.03764: an input X = [queries keys] and two
projections W_Q = [I; 0], W_K = [0; I] that are fixed once and for all. Only X depends on the pattern.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.errors import RefusalError

if TYPE_CHECKING:
    from attnscope.heads.module import HeadModule


@dataclass(frozen=True, eq=False)
class Head:
    """Attention of row i is softmax over the keys it may see of `scale * queries[i] . keys[j]`."""

    queries: Float[Tensor, "row width"]
    keys: Float[Tensor, "key width"]
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
        """What `arrays` gave, as a head again."""
        precision: torch.dtype = getattr(torch, dtype)
        return cls(torch.tensor(queries, dtype=precision), torch.tensor(keys, dtype=precision), causal, method, notes)

    def arrays(self) -> tuple[Float[np.ndarray, "row width"], Float[np.ndarray, "key width"]]:
        """Queries and keys for numpy, which knows no bfloat16: every value is exact, in float32 or float64."""
        exact = torch.float64 if self.queries.dtype == torch.float64 else torch.float32
        queries, keys = (tensor.detach().cpu().to(exact).numpy() for tensor in (self.queries, self.keys))
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
        """What attention multiplies products with: 1 / sqrt(width), as everywhere."""
        return float(self.width**-0.5)

    def logits(self, first: int = 0, last: int | None = None) -> Float[Tensor, "some_rows key"]:
        """Logits of rows first..last, accumulated in float32 (float64 for float64 heads), -inf where the mask hides."""
        exact = torch.float64 if self.queries.dtype == torch.float64 else torch.float32
        logits = self.queries[first:last].to(exact) @ self.keys.to(exact).T * self.scale
        if self.causal:
            query = torch.arange(first, first + len(logits))[:, None]
            logits = logits.masked_fill(torch.arange(len(self.keys)) > query, -torch.inf)
        return logits

    def attention(self, first: int = 0, last: int | None = None) -> Float[Tensor, "some_rows key"]:
        return self.logits(first, last).softmax(-1)

    def inputs(
        self,
    ) -> tuple[Float[Tensor, "row twice"], Float[Tensor, "twice width"], Float[Tensor, "twice width"]]:
        """X, W_Q, W_K of the theorem: queries are X W_Q, keys are X W_K, and the projections know no pattern."""
        if len(self.queries) != len(self.keys):
            raise RefusalError(
                f"A head with {len(self.queries)} queries and {len(self.keys)} keys has no single input X: use its "
                "queries and keys."
            )
        identity, nothing = (
            torch.eye(self.width, dtype=self.queries.dtype),
            torch.zeros(self.width, self.width, dtype=self.queries.dtype),
        )
        return (
            torch.cat([self.queries, self.keys], dim=1),
            torch.cat([identity, nothing]),
            torch.cat([nothing, identity]),
        )

    def module(self) -> HeadModule:
        """The head as a torch module that realises its pattern on its own X."""
        from attnscope.heads.module import module_of

        return module_of(self)
