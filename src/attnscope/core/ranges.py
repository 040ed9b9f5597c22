"""The ranges of numbers in files, as annotated types of fields that `core.decoding` checks.

mean: tuple[Size, ...]                                  finite, 0 or more
high: Annotated[tuple[Size, ...], AtLeast("low")]       and nowhere below the field `low` of the same object
n: Annotated[tuple[Count, ...], AsMany("mean")]         as many as in the field `mean`
order: FiniteOrNan                                      null is allowed, and read as NaN
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

_LARGEST = 2**63 - 1
HUGE = 2.0**512
"""1.3e154: the square of any smaller number is finite. Models compute in float32, whose largest number is 3.4e38."""


def slack(bound: float) -> float:
    """Return how far rounding can move a number past its bound.

    A float32 sum of 2^17 terms has a relative error of at most 2^17 2^-24 = 2^-7. The highest values on cards hold
    for up to 2^17 = 131072 keys. Weights that were rounded to bfloat16 have a relative error of 2^-9. Differences of
    shares have an error of a few 2^-24.
    """
    return 2.0**-7 * abs(bound) + 1e-6 if math.isfinite(bound) else 0.0


def adds_up(parts: Iterable[float], whole: float) -> bool:
    """Return whether finite parts sum to `whole`, up to rounding errors in proportion to their sizes."""
    numbers = list(parts)
    return abs(math.fsum(numbers) - whole) <= slack(math.fsum(map(abs, (*numbers, whole))))


@dataclass(frozen=True)
class Within:
    """The range of a number. `words` say what is needed, for refusals."""

    low: float | int
    high: float | int
    words: str


@dataclass(frozen=True)
class AtLeast:
    """The number, or each number of a list, is not below its counterpart in another field of the same object."""

    other: str


@dataclass(frozen=True)
class AtMost:
    """The number, or each number of a list, is not above another field of the same object."""

    other: str


@dataclass(frozen=True)
class Below:
    """The whole number, or each of a list, is below another field of the same object: block < number of blocks."""

    other: str


@dataclass(frozen=True)
class AsMany:
    """The list is as long as another field of the same object, or has as many entries as that field says."""

    other: str


class _Mark:
    """A mark on a field; it has no parameters."""


NAN, INFINITE, FACTS = _Mark(), _Mark(), _Mark()
"""NAN: null is allowed too. INFINITE: infinities are allowed too. FACTS: see `Provenance`."""

Finite = Annotated[float, Within(-HUGE, HUGE, "a finite number")]
Size = Annotated[float, Within(0.0, HUGE, "a finite number of 0 or more")]
Positive = Annotated[float, Within(math.ulp(0.0), HUGE, "a finite number above 0")]
Share = Annotated[float, Within(-slack(0.0), 1 + slack(1.0), "a share from 0 to 1")]
Probability = Annotated[float, Within(-slack(0.0), 1 + slack(1.0), "a probability from 0 to 1")]
Correlation = Annotated[float, Within(-1 - slack(1.0), 1 + slack(1.0), "a correlation from -1 to 1")]
FiniteOrNan = Annotated[Finite, NAN]
SizeOrNan = Annotated[Size, NAN]

Count = Annotated[int, Within(0, _LARGEST, "a count")]
Several = Annotated[int, Within(1, _LARGEST, "a whole number of 1 or more")]
Index = Annotated[int, Within(0, 10**6, "a number counted from 0")]  # number of a block, a head or a token
Huge = Annotated[int, Within(0, 10**308, "a count")]
"""A count of any size that a float can hold: thirty blocks of nine heads have 1e30 paths."""

Provenance = Annotated[dict[str, Any], FACTS]
"""Any JSON object whose numbers are finite and not negative (except seeds), and counts under the names in `COUNTED`."""
COUNTED = frozenset(
    (
        *("parameters", "layers", "heads", "tokens", "sequences", "samples", "texts", "count", "window"),
        *("batch_size", "max_tokens", "files_read", "files_skipped", "training_sequences", "held_out_sequences"),
    )
)
MOST_COUNTED = 10**15
"""Larger than any count under these names: the largest corpora have some 10^13 tokens, models 10^12 parameters."""
SEEDS = ("seed", "seeds")


def _as_many(mine: Any, other: Any) -> bool:
    return len(mine) == (other if isinstance(other, int) else len(other))


def _at_least(mine: Any, other: Any) -> bool:
    if isinstance(mine, tuple):
        return len(mine) == len(other) and all(map(_at_least, mine, other))
    return not mine < other - 1e-9 * abs(other)  # NaN passes; a mean of equal numbers may be off by an ulp


def _at_most(mine: Any, other: Any) -> bool:
    return all(_at_most(one, other) for one in mine) if isinstance(mine, tuple) else _at_least(other, mine)


def _below(mine: Any, other: int) -> bool:
    return all(_below(one, other) for one in mine) if isinstance(mine, tuple) else mine < other


RELATIONS: Mapping[type, Callable[[Any, Any], bool]] = {
    AsMany: _as_many,
    AtLeast: _at_least,
    AtMost: _at_most,
    Below: _below,
}
NEEDED = {
    AsMany: "a list as long as `{0}` says is needed",
    AtLeast: "a number not below `{0}` is needed",
    AtMost: "a number not above `{0}` is needed",
    Below: "a number below `{0}` is needed",
}
