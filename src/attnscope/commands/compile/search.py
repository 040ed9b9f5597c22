"""Search for the smallest width at which a construction reaches the accuracy.

    found = smallest(build, first=8, lowest=4, highest=256)     # build(width, seed, advance) -> (head, certificate)

The search doubles the width until a draw succeeds, then bisects. A wider head can realise whatever a narrower one can
(pad with zeros), but a randomised construction may fail at 12 and succeed at 11. So the search then goes down from the
smallest success one width at a time, with new draws, until `PATIENCE` widths in a row fail or one is far off.

A failing draw takes all its steps, a successful one stops early. So while no width is known to fail, the search goes
down by a quarter of the width instead of a half: it then fails only once, and near the answer.

Ctrl-C and a time limit end the search with the best head so far. The time limit is checked whenever the construction
reports progress, so a single long try cannot overrun it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from attnscope.commands.compile.record import Try
from attnscope.core.construction import Construction
from attnscope.core.errors import RefusalError
from attnscope.core.progress import Advance, silent
from attnscope.heads.accuracy import Accuracy, Factors
from attnscope.heads.facts import Certificate
from attnscope.heads.head import Head
from attnscope.heads.pattern import Pattern
from attnscope.heads.reduction import Reduction
from attnscope.heads.rounding import Certified, certified

Build = Callable[[int, int, Advance], tuple[Head, Certificate]]
Ending = Literal["finished", "interrupted", "out of time"]
Binds = Literal["always", "once built", "once reached"]
"""When the time limit takes effect: at once, after the first head, or after the first head that is accurate enough."""

RESTARTS = 2
PATIENCE = 2
HOPELESS = 0.1  # share of failing rows above which no other draw is made at that width
FEW = 1  # so few failing rows are never hopeless: in a small pattern one row is bad luck
STALLED = 3  # stop after this many doublings in a row that fail for lack of precision
LARGEST_FACTORS = 2**26  # numbers in queries and keys together: half a gigabyte


@dataclass(frozen=True)
class SearchBudget:
    """Limits of a search: processor seconds, and draws at one width."""

    seconds: float = math.inf
    binds: Binds = "always"
    restarts: int = RESTARTS


UNLIMITED = SearchBudget()


@dataclass(frozen=True, eq=False)
class Found:
    """The narrowest head that reached the accuracy, or else the most accurate head, and all tries."""

    head: Head
    certificate: Certificate
    seed: int
    tried: tuple[Try, ...]
    ending: Ending = "finished"

    @property
    def interrupted(self) -> bool:
        return self.ending == "interrupted"


class OutOfTimeError(Exception):
    """The time limit passed before any head was built."""


def smallest(
    build: Build,
    *,
    first: int,
    lowest: int = 1,
    highest: int,
    seed: int = 0,
    budget: SearchBudget = UNLIMITED,
    advance: Advance = silent,
) -> Found:
    """Search widths from `lowest` (a proved bound) to `highest`, starting at `first`."""
    search = _Search(build, seed, budget, advance)
    highest = max(highest, lowest)
    return search.ended_by(lambda: search.descend(min(max(first, lowest), highest), lowest, highest))


def at_width(
    build: Build, width: int, *, seed: int = 0, budget: SearchBudget = UNLIMITED, advance: Advance = silent
) -> Found:
    """Return the best of `budget.restarts` draws at one width. Stop at a draw that is accurate enough or far off."""
    search = _Search(build, seed, budget, advance)
    return search.ended_by(lambda: search.succeeds(width, range(budget.restarts)))


class _TimeIsUpError(Exception):
    pass


class _Search:
    def __init__(self, build: Build, seed: int, budget: SearchBudget, advance: Advance) -> None:
        self.build, self.seed, self.budget, self.advance = build, seed, budget, advance
        self.deadline = time.process_time() + budget.seconds
        self.tried: list[Try] = []
        self.best: tuple[Head, Certificate, int] | None = None
        self.latest: Certificate | None = None
        self.hopeless: set[int] = set()
        self.refusal: RefusalError | None = None

    def descend(self, first: int, lowest: int, highest: int) -> None:
        draws = range(self.budget.restarts)
        failed, width, stalled = lowest - 1, first, 0
        while not self.succeeds(width, draws):
            stalled = stalled + 1 if self._short_of_precision() else 0
            if width >= highest or stalled >= STALLED:
                return
            failed, width = width, min(2 * width, highest)
        reached = width
        while reached - failed > 1:
            fails_below = failed >= lowest
            width = (reached + failed) // 2 if fails_below else max(lowest, reached - max(1, reached // 4))
            if self.succeeds(width, draws):
                reached = width
            else:
                failed = width
        self._walk_down(reached, lowest)

    def _short_of_precision(self) -> bool:
        """Return whether more width cannot help: the leak is small but rounding spoils ratios, or numbers overflow."""
        last = self.latest
        return last is not None and not (math.isfinite(last.leak) and last.leak > last.asked_leak)

    def _walk_down(self, reached: int, lowest: int) -> None:
        width, misses = reached - 1, 0
        while width >= lowest and misses < PATIENCE:
            if any(width <= far_off < reached for far_off in self.hopeless):
                return
            before = sum(attempt.width == width for attempt in self.tried)
            if self.succeeds(width, range(before, max(before + 1, self.budget.restarts))):
                reached, misses = width, 0
            else:
                misses += 1
            width -= 1

    def succeeds(self, width: int, draws: Iterable[int]) -> bool:
        """Return whether one of these draws reaches the accuracy. Stop after a draw that is far off."""
        for draw in draws:
            if self.reaches(width, self.seed + draw):
                return True
            if width in self.hopeless:
                break
        return False

    def reaches(self, width: int, seed: int) -> bool:
        start = time.process_time()
        self._report(width)("", 0, 0)
        try:
            head, certificate = self.build(width, seed, self._report(width))
        except RefusalError as refusal:
            self.refusal = refusal
            spent = time.process_time() - start
            self.tried.append(Try(width, seed, math.inf, math.inf, False, spent, refused=str(refusal)))
            return False
        errors, spent = (certificate.ratio_error, certificate.leak), time.process_time() - start
        self.tried.append(Try(certificate.d, seed, *errors, certificate.reached, spent, head.method))
        self.latest = certificate
        if certificate.failing > max(FEW, HOPELESS * certificate.n):
            self.hopeless.add(width)
        if self.best is None or badness(certificate) < badness(self.best[1]):
            self.best = head, certificate, seed
        return certificate.reached

    def _report(self, width: int) -> Advance:
        best = self.best[1] if self.best else None
        so_far = "" if best is None else f", {best.d} found" if best.reached else ", nothing yet"

        def report(stage: str, done: int, total: int) -> None:
            if time.process_time() > self.deadline and self._may_stop():
                raise _TimeIsUpError
            own = "" if not stage or f"width {width}" in stage else f": {stage}"
            self.advance(f"width {width}{so_far}{own}", done, total)

        return report

    def _may_stop(self) -> bool:
        if self.budget.binds == "always":
            return True
        return self.best is not None and (self.budget.binds == "once built" or self.best[1].reached)

    def ended_by(self, work: Callable[[], object]) -> Found:
        """Run `work` and return the best head, also after an interruption or at the time limit."""
        ending: Ending = "finished"
        try:
            work()
        except KeyboardInterrupt:
            if self.best is None:
                raise
            ending = "interrupted"
        except _TimeIsUpError:
            if self.best is None:
                raise OutOfTimeError from None
            ending = "out of time"
        if self.best is None:
            raise self.refusal or RefusalError("No width was tried: give at least one.")
        head, certificate, seed = self.best
        return Found(head, certificate, seed, tuple(self.tried), ending)


def badness(certificate: Certificate) -> tuple[int, float]:
    """Return a sort key: accurate heads first, narrowest first; then by the number of failing rows and by excess."""
    excesses = (certificate.ratio_error / certificate.asked_ratio_error, certificate.leak / certificate.asked_leak)
    excess = math.inf if any(map(math.isnan, excesses)) else max(excesses)
    if certificate.reached:
        return certificate.d - 2**62, excess
    return certificate.failing, excess


def narrowest_by(
    construction: Construction,
    pattern: Pattern,
    accuracy: Accuracy,
    *,
    lowest: int = 1,
    below: int | None = None,
    seed: int = 0,
    budget: SearchBudget = UNLIMITED,
    advance: Advance = silent,
    reduction: Reduction | None = None,
) -> Found:
    """Return the narrowest head of a construction; with `below`, search only widths below it.

    With a `reduction`, the construction gets the reduced pattern, and its head is lifted to the whole one.
    """
    build = building(construction, pattern, accuracy, reduction)
    smaller = reduction or Reduction(pattern, accuracy.leak)
    if construction.fixed_width:
        # The bound for keys that serve all patterns may exceed the width that this pattern needs.
        width = max(construction.fixed_width(smaller.pattern) + smaller.extra, lowest)
        return at_width(build, width, seed=seed, budget=replace(budget, restarts=1), advance=advance)
    return smallest(
        build,
        first=construction.first_width(smaller.pattern) + smaller.extra,
        lowest=max(lowest, 1 + smaller.extra),
        highest=widest(construction, smaller.pattern) + smaller.extra if below is None else below - 1,
        seed=seed,
        budget=budget,
        advance=advance,
    )


def building(
    construction: Construction, pattern: Pattern, accuracy: Accuracy, reduction: Reduction | None = None
) -> Build:
    """Return a function that builds, rounds and certifies a head of a given total width."""
    smaller = reduction or Reduction(pattern, accuracy.leak)
    stricter = replace(accuracy, leak=smaller.leak)

    def build(width: int, seed: int, advance: Advance) -> Certified:
        if width <= smaller.extra:
            raise RefusalError(f"A head of width {width} has no room for this pattern: ask for {smaller.extra + 1}.")
        rng = np.random.default_rng(seed)
        factors = construction(smaller.pattern, width - smaller.extra, stricter, rng, advance)
        notes = {**factors.notes, **({"reduced": list(smaller.words)} if smaller.steps else {})}
        whole = Factors(*smaller.lifted(factors.queries, factors.keys), notes, factors.as_found)
        return certified(whole, pattern, accuracy, construction.name)

    return build


def refuse_too_wide(width: int, pattern: Pattern) -> None:
    """Refuse a width at which several copies of the queries and keys would not fit into memory."""
    tokens = pattern.n + pattern.n_keys
    largest = max(1, LARGEST_FACTORS // tokens)
    if width > largest:
        size = 8 * width * tokens / 1e9
        raise RefusalError(
            f"Queries and keys of width {width:,} for {pattern.n:,} rows would take {size:,.1f} GB: give a `width=` of "
            f"{largest:,} or less."
        )


def widest(construction: Construction, pattern: Pattern) -> int:
    """Return the largest width to search.

    One dimension per key can realise any pattern. Random keys may need more than that on small patterns.
    """
    most = max(pattern.n_keys, 8 * construction.first_width(pattern))
    return max(1, min(most, LARGEST_FACTORS // (pattern.n + pattern.n_keys)))
