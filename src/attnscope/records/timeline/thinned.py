"""Thousands of looks on a screen of a few hundred columns, without hiding what stood out.

Neighbouring looks share a column, equally many in each. A mean would wash a spike of one look away, so every place
keeps, of the looks in a column, the number that is farthest from its own median over the whole run. A line through
these runs along the edge of the band that the numbers fill: it shows every excursion, and more unrest than a mean
would; `words` says so beside every picture that is thinned.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnscope.core.words import count


@dataclass(frozen=True)
class Columns:
    """Looks `begins[c]` to `ends[c]` (not included) share column c."""

    begins: NDArray[np.int64]
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, looks: int, most: int) -> Columns:
        each = max(1, -(-looks // max(most, 1)))
        begins = np.arange(0, looks, each)
        return cls(begins, np.minimum(begins + each, looks))

    def __len__(self) -> int:
        return len(self.begins)

    @property
    def each(self) -> int:
        """How many looks share a column, the last one aside."""
        return int((self.ends - self.begins).max(initial=1))

    def thin(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """[looks, ...] to [columns, ...]: of each column the number farthest from the median of its place."""
        if self.each == 1 or not len(numbers):
            return numbers
        known = np.isfinite(numbers)
        empty = ~known.any(axis=0)
        middle = np.nanmedian(np.where(empty, 0.0, np.where(known, numbers, np.nan)), axis=0)
        far = np.where(known, np.abs(np.where(known, numbers, 0.0) - middle), -1.0)
        made = np.empty((len(self), *numbers.shape[1:]))
        for column, (begin, end) in enumerate(zip(self.begins, self.ends, strict=True)):
            place = far[begin:end].argmax(axis=0)
            made[column] = np.take_along_axis(numbers[begin:end], place[None], axis=0)[0]
        return made

    def words(self, looks: int) -> str:
        """What a picture must say of itself; nothing where every look has its column."""
        if self.each == 1:
            return ""
        return (
            f"{count(looks, 'look')} are drawn as {len(self):,}: of {self.each} neighbours each place shows the "
            "number farthest from its median over the run, so that nothing that stood out is hidden."
        )
