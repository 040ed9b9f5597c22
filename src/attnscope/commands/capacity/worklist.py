"""Measure missing widths within a time limit, most important first, and take medians over seeds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from attnscope.commands.capacity.record import Need, median_width
from attnscope.commands.capacity.widths import Measurement, Point, Shelf, measure
from attnscope.core.progress import Advance
from attnscope.core.registry import for_auto
from attnscope.heads.accuracy import Accuracy

WORTH_TRYING = 20.0  # seconds that must be left


class Worklist:
    """The measurements for one question: those in the store, and new ones while there is time."""

    def __init__(
        self, shelf: Shelf, accuracy: Accuracy, seeds: tuple[int, ...], deadline: float, progress: Advance
    ) -> None:
        self.shelf, self.accuracy, self.seeds, self.deadline, self.progress = shelf, accuracy, seeds, deadline, progress

    def point(self, method: str, n: int, k: int, seed: int) -> Point:
        return Point(method, n, k, self.accuracy.dtype, self.accuracy.ratio_error, self.accuracy.leak, seed)

    def kept(self, method: str, n: int, k: int) -> list[Measurement]:
        known = (self.shelf.get(self.point(method, n, k, seed)) for seed in self.seeds)
        return [measurement for measurement in known if measurement is not None]

    def shipped(self, method: str, n: int, k: int) -> bool:
        """Return whether the table of the package has the width for at least one seed."""
        return any(self.shelf.shipped(self.point(method, n, k, seed)) for seed in self.seeds)

    def fill(self, methods: Sequence[str], places: Sequence[tuple[int, int]]) -> None:
        """Measure seed by seed, so that every place has one number before any has two.

        For each seed the smallest place is measured first, because it shows the speed of each method. Then comes the
        requested (n, k), `places[0]`, then the others by expected cost.
        """
        question, *others = places
        smallest = min(places, key=lambda place: place[0] ** 2 * place[1])
        for seed in self.seeds:
            self._measure_all(methods, [smallest], seed)
            self._measure_all(methods, [question], seed)
            self._try_anyway(methods, question, seed)
            self._measure_all(methods, others, seed)

    def _try_anyway(self, methods: Sequence[str], question: tuple[int, int], seed: int) -> None:
        """Spend the remaining time on the requested (n, k), with the default constructions of `compile`.

        A width from a search that is cut short counts too.
        """
        for construction in filter(None, (for_auto("one pattern"), for_auto("any pattern"))):
            method, point = construction.name, self.point(construction.name, *question, seed)
            left = self.deadline - time.process_time()
            if method in methods and not self.kept(method, *question) and left > WORTH_TRYING:
                self.shelf.put(measure(point, left, self._saying(point, 0, 1)))

    def _measure_all(self, methods: Sequence[str], places: Sequence[tuple[int, int]], seed: int) -> None:
        points = [self.point(method, n, k, seed) for n, k in places for method in methods]
        missing = [point for point in points if self.shelf.get(point) is None]
        for done, point in enumerate(sorted(missing, key=self.shelf.expected_seconds)):
            left = self.deadline - time.process_time()
            if self.shelf.expected_seconds(point) > left:
                continue
            self.shelf.put(measure(point, left, self._saying(point, done, len(missing))))

    def _saying(self, point: Point, done: int, total: int) -> Advance:
        def advance(stage: str, _done: int, _total: int) -> None:
            where = f"{point.method} at n = {point.n}, k = {point.k}, seed {point.seed}"
            self.progress(f"{where}: {stage}", done, total)

        return advance

    def need(self, method: str, n: int, k: int) -> Need:
        kept = self.kept(method, n, k)
        if not kept:
            seconds = self.shelf.expected_seconds(self.point(method, n, k, self.seeds[0])) * len(self.seeds)
            return Need(method, n, k, None, (), (), None, 0.0, f"not measured (would take about {duration(seconds)})")
        widths = tuple(measurement.d for measurement in kept)
        median = median_width(widths)
        logits = [measurement.max_logit for measurement in kept if measurement.max_logit is not None]
        return Need(
            method=method,
            n=n,
            k=k,
            d=median,
            widths=widths,
            seeds=tuple(measurement.point.seed for measurement in kept),
            max_logit=statistics.median_high(logits) if logits else None,
            seconds=sum(measurement.seconds for measurement in kept),
            note=_note(kept, median),
        )


def _note(kept: Sequence[Measurement], median: int | None) -> str:
    refused, reached = [m.refused for m in kept if m.refused], median is not None
    if refused:
        return refused[0]
    if any(measurement.cut_short for measurement in kept):
        return "time ran out before the search ended" if reached else "time ran out before a width was found"
    return "" if reached else "no width reaches the accuracy in this precision"


def duration(seconds: float) -> str:
    """Return `40 s`, `7 min`, `3 h` or `5 days`: a coarse estimate."""
    for size, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(1.0, seconds):.0f} s"
