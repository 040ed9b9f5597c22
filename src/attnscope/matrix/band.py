"""A band: which keys a query may see by position alone, as two distances.

Causal attention, sliding windows and their mirror images (what a key is seen by) are all bands, so one
description serves rows and columns: query i sees key j when i - j <= behind and j - i <= ahead; None means no
limit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor


@dataclass(frozen=True)
class Band:
    behind: int | None = None
    ahead: int | None = None

    @property
    def open(self) -> bool:
        """Whether position forbids nothing."""
        return self.behind is None and self.ahead is None

    @property
    def mirrored(self) -> Band:
        """The same band with the roles of queries and keys exchanged."""
        return Band(behind=self.ahead, ahead=self.behind)

    def visible(self, first: int, last: int, keys: int) -> tuple[int, int]:
        """The half-open range of keys that at least one query in first..last (inclusive) sees."""
        start = 0 if self.behind is None else min(max(0, first - self.behind), keys)
        stop = keys if self.ahead is None else min(keys, last + self.ahead + 1)
        return start, max(start, stop)

    def permits(self, row: Int[Tensor, "*rows"], key: Int[Tensor, "*keys"]) -> Bool[Tensor, " ..."]:
        """Elementwise (broadcast) whether `row` may see `key`."""
        distance = row - key
        permitted = torch.ones_like(distance, dtype=torch.bool)
        if self.behind is not None:
            permitted = permitted & (distance <= self.behind)
        if self.ahead is not None:
            permitted = permitted & (-distance <= self.ahead)
        return permitted
