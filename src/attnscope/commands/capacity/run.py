"""capacity: how wide a head must be, by proved lower bounds and by measured widths of constructions.

    attnscope.capacity(4096, 8, dtype="bfloat16")

Widths are measured, never extrapolated: they are the smallest widths found on unions of k random permutations, as
medians over seeds. Unknown widths are measured within `budget` seconds, first at the requested (n, k), then along the
curves. Widths that do not fit are listed as not measured, with the time they would take. If the table of the package
has the answer and no budget is given, nothing is measured and torch is not needed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from attnscope.commands.capacity.record import Capacity, Floor
from attnscope.commands.capacity.widths import Shelf
from attnscope.commands.capacity.worklist import Worklist
from attnscope.core.card import names as leaf_names
from attnscope.core.errors import RefusalError, at_least, one_of
from attnscope.core.progress import Advance, silent
from attnscope.core.stamp import numbered_seeds, refuse_unusable_seed
from attnscope.heads.accuracy import Accuracy, checked_accuracy
from attnscope.heads.bounds import bounds_for
from attnscope.heads.entries import LARGEST
from attnscope.heads.generate import SPREAD
from attnscope.heads.solvers.theorem import theorem_width

SEEDS = 3
BUDGET = 120.0
NARROWEST = "joint"  # the construction that `compile` uses for one pattern
SIZES = (16, 64, 256, 1024, 4096, 16384)
COUNTS = (1, 2, 4, 8, 16)
CURVE_SIZE = 256  # n of the curve along k, unless the requested n is smaller or already measured


def capacity(
    n: int,
    k: int,
    dtype: str = "float32",
    ratio_error: float = 0.1,
    leak: float = 0.01,
    *,
    seeds: int | Sequence[int] = SEEDS,
    budget: float | None = None,
    methods: Iterable[str] | None = None,
    curves: bool = True,
    use_cache: bool = True,
    cache_folder: Path | None = None,
    progress: Advance = silent,
) -> Capacity:
    """Return how wide a head must be: proved bounds, and the width of each construction.

    Parameters
    ----------
    n, k : int
        The number of tokens, and of keys for each query.
    dtype : str
        The precision of heads.
    ratio_error, leak : float
        Limits for every row: the relative error of weights inside the pattern, and the weight outside it.
    seeds : int or sequence of int
        How many random patterns are measured, or their seeds.
    budget : float, optional
        Seconds to measure widths that are not in the table of the package. Default: 0 if it has the answer, else 120.
    methods : iterable of str, optional
        The constructions to measure. Default: all.
    curves : bool
        Also measure along n and along k.
    use_cache, cache_folder : bool, Path, optional
        Whether earlier measurements are used, and where they are kept.
    progress : callable
        Called as `progress(stage, done, total)`.

    Returns
    -------
    Capacity
        Widths are medians over seeds and never extrapolated.

    Raises
    ------
    RefusalError
        If n, k, the accuracy, the seeds or a method is unusable.

    Examples
    --------
    >>> attnscope.capacity(64, 2)
    <Capacity of n = 64, k = 2 in float32: 3 by paraboloid>
    """
    question = Question.asked(n, k, checked_accuracy(ratio_error, leak, dtype), seeds, methods)
    shelf = Shelf(cache_folder, fresh=not use_cache)
    return answered(question, shelf, budget=budget, curves=curves, progress=progress)


@dataclass(frozen=True)
class Question:
    """One question to `capacity`: n tokens, k keys per row, the accuracy, the seeds of patterns, and the methods."""

    n: int
    k: int
    accuracy: Accuracy
    seeds: tuple[int, ...]
    methods: tuple[str, ...]

    @classmethod
    def asked(
        cls,
        n: int,
        k: int,
        accuracy: Accuracy,
        seeds: int | Sequence[int],
        methods: Iterable[str] | None = None,
    ) -> Question:
        """Return a question from the parameters of `capacity`; refuse impossible parameters."""
        n, k = _whole(n, "-n"), _whole(k, "-k")
        seeds = tuple(int(seed) for seed in numbered_seeds(seeds, "a search with every construction"))
        _check(n, k, seeds)
        return cls(n, k, accuracy, seeds, _names(None if methods is None else tuple(methods)))

    def in_table(self, shelf: Shelf) -> bool:
        """Return whether the shipped table has the width of the narrowest construction, for at least one seed.

        Questions with more seeds than the default are always measured."""
        worklist = Worklist(shelf, self.accuracy, self.seeds, 0.0, silent)
        usual = NARROWEST in self.methods and set(self.seeds) <= set(range(SEEDS))
        return usual and worklist.shipped(NARROWEST, self.n, self.k)


def answered(
    question: Question,
    shelf: Shelf,
    *,
    budget: float | None = None,
    curves: bool = True,
    progress: Advance = silent,
) -> Capacity:
    """Answer a question from the stored measurements. New measurements are added to the store."""
    start = time.process_time()
    if budget is not None:
        at_least(budget, 0, "budget")
    n, k, accuracy, names = question.n, question.k, question.accuracy, question.methods
    deadline = start + (BUDGET if budget is None else budget)
    worklist = Worklist(shelf, accuracy, question.seeds, deadline, progress)
    shipped = budget is None and question.in_table(shelf)
    sizes = tuple(size for size in _curve_sizes(n) if size > k or size == n)
    counts_at, counts = _curve_counts(n, k, worklist, names)
    places = [(n, k)]
    if curves:
        places += [(size, k) for size in sizes] + [(counts_at, count) for count in counts]
    interrupted = False
    try:
        if not shipped:
            worklist.fill(names, list(dict.fromkeys(places)))
    except KeyboardInterrupt:
        interrupted = True
    against_n = tuple(worklist.need(name, size, k) for name in names for size in sizes) if curves else ()
    against_k = tuple(worklist.need(name, counts_at, count) for name in names for count in counts) if curves else ()
    return Capacity(
        n=n,
        k=k,
        dtype=accuracy.dtype,
        ratio_error=accuracy.ratio_error,
        leak=accuracy.leak,
        seeds=question.seeds,
        bounds=bounds_for(n, k, accuracy),
        theorem_width=_theorem(n, k, accuracy),
        needs=tuple(worklist.need(name, n, k) for name in names),
        against_n=against_n,
        against_k=against_k,
        seconds=round(time.process_time() - start, 3),
        interrupted=interrupted,
        shipped=shipped,
        floors=_floors([(need.n, need.k) for need in (*against_n, *against_k)], accuracy),
    )


def _names(methods: tuple[str, ...] | None) -> tuple[str, ...]:
    known = known_constructions()
    for name in methods or ():
        one_of(name, known, "methods")
    return known if methods is None else methods


def known_constructions() -> tuple[str, ...]:
    """Return the names of constructions without importing them (and torch)."""
    return leaf_names("attnscope.constructions")


def _theorem(n: int, k: int, accuracy: Accuracy) -> int:
    """Return the theorem's width for weights within a factor 4 and this leak (see solvers.projection)."""
    zero_ratio = min(1.0, k / max(n - k, 1) * accuracy.leak / (1 - accuracy.leak))
    return theorem_width(n, float(k), SPREAD, accuracy.ratio_error, zero_ratio).width


def _floors(places: Sequence[tuple[int, int]], accuracy: Accuracy) -> tuple[Floor, ...]:
    """Return the bounds along the curves, for the chart."""
    found = {(n, k): bounds_for(n, k, accuracy) for n, k in dict.fromkeys(places)}
    return tuple(Floor(n, k, bounds["universal"].width, bounds["typical"].width) for (n, k), bounds in found.items())


def _whole(number: int, option: str) -> int:
    if int(number) != number:
        raise RefusalError(f"{number} is not a whole number: give {option} one.")
    return int(number)


def _check(n: int, k: int, seeds: Sequence[int]) -> None:
    if n < 2:
        raise RefusalError(f"A pattern of {n} rows is too small: give -n at least 2.")
    if not 1 <= k <= n:
        raise RefusalError(f"A row of {n} keys cannot have {k} non-zeros: give -k a number between 1 and {n}.")
    if n > LARGEST:
        raise RefusalError(f"{n} tokens are more than a pattern can have: give -n at most {LARGEST}.")
    if not seeds:
        raise RefusalError("No seed was given: give at least one.")
    refuse_unusable_seed(min(seeds), lowest=0)


def _curve_sizes(n: int) -> tuple[int, ...]:
    return (*(size for size in SIZES if size < n), n)


def _curve_counts(n: int, k: int, worklist: Worklist, names: Sequence[str]) -> tuple[int, tuple[int, ...]]:
    """Return n and the k values of the curve along k.

    n is the requested n if that is small or already measured, else `CURVE_SIZE`.
    """
    known = any(worklist.kept(name, n, count) for name in names for count in COUNTS if count != k)
    at = n if n <= CURVE_SIZE or known else CURVE_SIZE
    most = max(k, 8)
    return at, tuple(sorted({count for count in (*COUNTS, k) if count <= min(most, at // 2) or count == k <= at}))
