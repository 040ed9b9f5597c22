"""The last looks of a run as arrays, for rules to read. Needs no torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnscope.records.timeline.look import Look

KEPT = 256  # looks; what came before them is forgotten, but for the first
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Track:
    """One measure at one place over the last looks: `values` is [looks, layers] or [looks, layers, heads]."""

    stack: str
    site: str
    steps: NDArray[np.int64]
    values: Array
    first: Array  # at the first look of the run

    @property
    def now(self) -> Array:
        last: Array = self.values[-1]
        return last

    def before(self, window: float) -> Array | None:
        """At the last look that is `window` steps old or older; at the oldest known where none is; None at the first
        look of all."""
        if len(self.steps) < 2:
            return None
        old = np.flatnonzero(self.steps <= self.steps[-1] - window)
        found: Array = self.values[old[-1] if len(old) else 0]
        return found

    def within(self, window: float) -> Array:
        """The values of the looks of the last `window` steps, this one included."""
        found: Array = self.values[self.steps >= self.steps[-1] - window]
        return found


class History:
    """Grows by one look at a time."""

    def __init__(self) -> None:
        self.looks: list[Look] = []
        self.first: Look | None = None
        self.lowest = math.inf  # of all losses that were told
        self.loss: float | None = None
        self.broken: str | None = None  # where numbers stop being numbers, if that is known

    def add(self, look: Look) -> None:
        self.first = self.first or look
        self.looks = [*self.looks[-KEPT + 1 :], look]
        self.told(look.loss)

    def told(self, loss: float | None) -> None:
        """The loss of a step, looked at or not."""
        self.loss = loss
        if loss is not None and math.isfinite(loss):
            self.lowest = min(self.lowest, loss)

    @property
    def step(self) -> int:
        return self.looks[-1].step

    def tracks(self, measure: str, part: str = "value") -> Iterator[Track]:
        """One for every stack and site in which the last look measured it."""
        assert self.first is not None
        for last in self.looks[-1].values:
            if (last.measure, last.part) != (measure, part):
                continue
            same = []
            for look in self.looks:
                found = look.find(measure, part, last.stack, last.site)
                if found is not None and found.numbers.shape == last.numbers.shape:
                    same.append((look.step, found.numbers))
            first = self.first.find(measure, part, last.stack, last.site)
            begun = last.numbers if first is None or first.numbers.shape != last.numbers.shape else first.numbers
            yield Track(
                last.stack,
                last.site,
                np.array([step for step, _ in same]),
                np.array([numbers for _, numbers in same]),
                begun,
            )
