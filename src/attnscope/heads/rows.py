"""Rows of patterns as torch tensors: rows of many patterns on the same keys are worked on together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnscope.patterns.pattern import Pattern


@dataclass(frozen=True, eq=False)
class Rows:
    """Empty places of a support repeat its first key and are not `real`. `last` is the last key that a row sees, None
    where every row sees every key."""

    support: Int[Tensor, "row k"]
    logs: Float[Tensor, "row k"]
    real: Bool[Tensor, "row k"]
    last: Int[Tensor, " row"] | None = None

    @classmethod
    def of(cls, patterns: Sequence[Pattern]) -> Rows:
        """All rows of all patterns, one after the other."""
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
            seen = [np.arange(one.n) if one.causal else np.full(one.n, one.n_keys - 1) for one in patterns]
            last = torch.from_numpy(np.concatenate(seen))
        return cls(torch.from_numpy(support), torch.from_numpy(weights).log(), torch.from_numpy(real), last)

    def __len__(self) -> int:
        return len(self.support)

    def __getitem__(self, some: Tensor | slice) -> Rows:
        last = None if self.last is None else self.last[some]
        return Rows(self.support[some], self.logs[some], self.real[some], last)

    def pattern(self, n_keys: int) -> Pattern:
        """The rows as a pattern of their own."""
        starts = np.concatenate([[0], np.cumsum(self.real.sum(1).numpy())])
        return Pattern(starts, self.support[self.real].numpy(), self.logs[self.real].exp().numpy(), n_keys)

    def hide(self, values: Float[Tensor, "row key"], hidden: float) -> None:
        """Write `hidden` where there is no zero of the pattern: on the support, and on what a causal mask hides."""
        values.scatter_(1, self.support, hidden)
        if self.last is not None:
            values.masked_fill_(torch.arange(values.shape[1]) > self.last[:, None], hidden)
