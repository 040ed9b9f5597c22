"""capacity: how wide must a head be? What is proved from below, and what each construction needs.

    attnscope.capacity(4096, 8, dtype="bfloat16")

Widths are measured, never extrapolated: smallest widths found on unions of k random permutations, the median over the
seeds that are stated. What is not known yet is measured while it fits into `budget` seconds, the question itself first,
then the curves around it; what does not fit is said to be not measured, with the time it would take.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attnscope.compiling.by_method import asked
from attnscope.compiling.desk import Desk, Need
from attnscope.compiling.measurements import Shelf
from attnscope.core.construction import Advance, silent
from attnscope.core.errors import RefusalError, nearest
from attnscope.core.registry import constructions
from attnscope.core.seeds import numbered_seeds
from attnscope.patterns.accuracy import Accuracy
from attnscope.patterns.bounds import Bounds, bounds_for
from attnscope.patterns.entries import LARGEST
from attnscope.patterns.generate import SPREAD
from attnscope.patterns.projection import theorem_width
from attnscope.patterns.seeds import refuse_negative

SEEDS = (0, 1, 2)
BUDGET = 120.0
SIZES = (16, 64, 256, 1024, 4096, 16384)
COUNTS = (1, 2, 4, 8, 16)
CURVE_SIZE = 256  # where d is measured against k, unless the size that was asked for is smaller or known


@dataclass(frozen=True, repr=False)
class Capacity:
    """`needs` answers the question; `against_n` and `against_k` are the curves around it.

    `bounds` are for keys that serve every pattern; one pattern alone may need less.
    """

    n: int
    k: int
    dtype: str
    ratio_error: float
    leak: float
    seeds: tuple[int, ...]
    bounds: Bounds
    theorem_width: int
    needs: tuple[Need, ...]
    against_n: tuple[Need, ...]
    against_k: tuple[Need, ...]
    seconds: float
    interrupted: bool = False

    @property
    def narrowest(self) -> Need | None:
        """The construction that needs least."""
        return min((need for need in self.needs if need.d is not None), key=lambda need: need.d or 0, default=None)

    def chart(self) -> Any:
        """Width against n and against k, one line per construction, bounds dashed."""
        from attnscope.charts.capacity_curves import capacity_curves

        accuracy = asked(self.ratio_error, self.leak, self.dtype)
        needs, floors = [], []
        for against, curve in (("n", self.against_n), ("k", self.against_k)):
            for need in curve:
                if need.d is not None:
                    needs.append({"against": against, "at": getattr(need, against), "name": need.method, "d": need.d})
            for n, k in dict.fromkeys((need.n, need.k) for need in curve):
                at = n if against == "n" else k
                bounds = bounds_for(n, k, accuracy)
                for name, label in (("universal", "keys for all patterns"), ("typical", "most patterns")):
                    floors.append({"against": against, "at": at, "name": label, "d": bounds[name].width})
        fixed = {"n": f"k = {self.k}", "k": f"n = {self.against_k[0].n:,}" if self.against_k else ""}
        return capacity_curves(
            needs,
            floors,
            title="How wide must a head be?",
            subtitle=(
                f"{self.dtype}, worst row: ratio error {self.ratio_error:g}, leak {self.leak:g}; "
                f"unions of k random permutations, median over {self._seed_words()}",
                f"far above: the theorem of arXiv:2106.03764 asks for {self.theorem_width:,} "
                f"at n = {self.n:,}, k = {self.k}",
            ),
            fixed=fixed,
        )

    def _seed_words(self) -> str:
        """Which patterns a point stands for: all seeds, or those there was time for."""
        drawn = [need.seeds for need in (*self.against_n, *self.against_k) if need.d is not None]
        named = ", ".join(map(str, self.seeds))
        if len(self.seeds) == 1:
            return f"seed {named}"
        return f"seeds {named}" if all(seeds == self.seeds for seeds in drawn) else f"some of the seeds {named}"

    def __repr__(self) -> str:
        best = self.narrowest
        found = "nothing measured" if best is None else f"{best.d} by {best.method}"
        return f"<Capacity of n = {self.n}, k = {self.k} in {self.dtype}: {found}>"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th>{need.method}</th><td>{'not measured' if need.d is None else need.d}</td></tr>"
            for need in self.needs
        )
        floor = self.bounds["universal"].width
        title = f"n = {self.n}, k = {self.k}, {self.dtype}: width needed (keys for all patterns: at least {floor})"
        return f"<div><p>{title}</p><table>{rows}</table></div>"

    def to_json(self) -> dict[str, Any]:
        from attnscope import __version__

        return {
            "n": self.n,
            "k": self.k,
            "dtype": self.dtype,
            "ratio_error": self.ratio_error,
            "leak": self.leak,
            "pattern": "union_of_permutations",
            "seeds": list(self.seeds),
            "universal_lower_bound": self.bounds["universal"].width,
            "theorem_width": self.theorem_width,
            **self.bounds.to_json(),
            "needs": [asdict(need) for need in self.needs],
            "against_n": [asdict(need) for need in self.against_n],
            "against_k": [asdict(need) for need in self.against_k],
            "seconds": round(self.seconds, 3),
            "interrupted": self.interrupted,
            "attnscope": __version__,
        }


def capacity(
    n: int,
    k: int,
    dtype: str = "float32",
    ratio_error: float = 0.1,
    leak: float = 0.01,
    *,
    seeds: int | Sequence[int] = SEEDS,
    budget: float = BUDGET,
    methods: Iterable[str] | None = None,
    curves: bool = True,
    use_cache: bool = True,
    cache_folder: Path | None = None,
    progress: Advance = silent,
) -> Capacity:
    """The bounds at (n, k), what each construction needs there, and (with `curves`) along n and along k.

    `seeds` is how many, or which.
    """
    start = time.monotonic()
    accuracy = asked(ratio_error, leak, dtype)
    n, k = _whole(n, "-n"), _whole(k, "-k")
    seeds = tuple(int(seed) for seed in numbered_seeds(seeds, "a search with every construction"))
    _check(n, k, seeds, budget)
    names = _names(None if methods is None else tuple(methods))
    desk = Desk(Shelf(cache_folder, fresh=not use_cache), accuracy, seeds, start + budget, progress)
    sizes = tuple(size for size in _curve_sizes(n) if size > k or size == n)
    counts_at, counts = _curve_counts(n, k, desk, names)
    places = [(n, k)]
    if curves:
        places += [(size, k) for size in sizes] + [(counts_at, count) for count in counts]
    interrupted = False
    try:
        desk.fill(names, list(dict.fromkeys(places)))
    except KeyboardInterrupt:
        interrupted = True
    return Capacity(
        n=n,
        k=k,
        dtype=accuracy.dtype,
        ratio_error=ratio_error,
        leak=leak,
        seeds=seeds,
        bounds=bounds_for(n, k, accuracy),
        theorem_width=_theorem(n, k, accuracy),
        needs=tuple(desk.need(name, n, k) for name in names),
        against_n=tuple(desk.need(name, size, k) for name in names for size in sizes) if curves else (),
        against_k=tuple(desk.need(name, counts_at, count) for name in names for count in counts) if curves else (),
        seconds=time.monotonic() - start,
        interrupted=interrupted,
    )


def _names(methods: tuple[str, ...] | None) -> tuple[str, ...]:
    known = constructions()
    for name in methods or ():
        if name not in known:
            raise RefusalError(f"There is no construction called '{name}'.{nearest(name, known)}")
    return tuple(known if methods is None else methods)


def _theorem(n: int, k: int, accuracy: Accuracy) -> int:
    """The theorem's width for weights within a factor 4 and an e2 that keeps the leak (see patterns.projection)."""
    zero_ratio = min(1.0, k / max(n - k, 1) * accuracy.leak / (1 - accuracy.leak))
    return theorem_width(n, float(k), SPREAD, accuracy.ratio_error, zero_ratio).width


def _whole(number: int, option: str) -> int:
    if int(number) != number:
        raise RefusalError(f"{number} is not a whole number: give {option} one.")
    return int(number)


def _check(n: int, k: int, seeds: Sequence[int], budget: float) -> None:
    if n < 2:
        raise RefusalError(f"A pattern of {n} rows asks nothing of a head: give -n at least 2.")
    if not 1 <= k <= n:
        raise RefusalError(f"A row of {n} keys cannot have {k} non-zeros: give -k a number between 1 and {n}.")
    if n > LARGEST:
        raise RefusalError(f"{n} tokens are more than a pattern can have: give -n at most {LARGEST}.")
    if not seeds:
        raise RefusalError("No seed was given, and so nothing to measure on: give at least one.")
    refuse_negative(min(seeds))
    if not budget >= 0:
        raise RefusalError(f"A budget of {budget:g} seconds cannot be kept: give a number of seconds, like 120.")


def _curve_sizes(n: int) -> tuple[int, ...]:
    return (*(size for size in SIZES if size < n), n)


def _curve_counts(n: int, k: int, desk: Desk, names: Sequence[str]) -> tuple[int, tuple[int, ...]]:
    """At the size asked for if other counts are known there or it is small; else at a size that can be measured."""
    known = any(desk.kept(name, n, count) for name in names for count in COUNTS if count != k)
    at = n if n <= CURVE_SIZE or known else CURVE_SIZE
    most = max(k, 8)
    return at, tuple(sorted({count for count in (*COUNTS, k) if count <= min(most, at // 2) or count == k <= at}))
