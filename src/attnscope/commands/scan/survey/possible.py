"""Check that the numbers of a survey file can be what a scan measured. A `FieldError` names the first that cannot.

A cell holds the count n, the exact sums T of the values and Q of their squares, their minimum a and maximum b, and the
number of values in every bucket. Sums are whole numbers, so these hold exactly, without a tolerance:

    n a <= T <= n b                         every value lies between a and b
    T^2 <= n Q                              Cauchy and Schwarz
    Q <= (a + b) T - n a b                  the sum of (v - a)(b - v), which is never negative

The buckets hold n values, the first bucket holds a, the last holds b, and the peak is b. Only a and b have to be
compared with the range on the card, because all values and their mean lie between them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnscope.commands.scan.survey.cell import Cell, Key
from attnscope.commands.scan.survey.trial import HeadTrial, Trial
from attnscope.core.card import Card
from attnscope.core.decoding import FieldError
from attnscope.core.words import count
from attnscope.stats.moments import UNIT
from attnscope.stats.peak import NOWHERE
from attnscope.stats.sketch import bucket_of


@dataclass(frozen=True)
class Extent:
    """The blocks, the most heads of a block, and the tokens of one stack, from provenance; None if unknown."""

    layers: int | None = None
    heads: int | None = None
    tokens: int | None = None

    @classmethod
    def of_stacks(cls, provenance: Mapping[str, Any]) -> dict[str, Extent]:
        stacks = provenance.get("model", {}).get("stacks") or ()
        return {s["name"]: cls(s.get("layers"), s.get("heads"), s.get("tokens")) for s in stacks}

    def check_place(self, key: Key, heads: int) -> None:
        """Refuse a block or a head beyond the model. The stream has a state after the last block too."""
        if self.layers is not None and key.layer > self.layers - (key.site != "stream"):
            raise FieldError(f"key: a block of the {self.layers} in stack {key.stack} is needed, not {key.layer}")
        if self.heads is not None and heads > self.heads:
            raise FieldError(f"shape: at most {self.heads} heads are needed in stack {key.stack}, not {heads}")


def check_trial(trial: Trial, extents: Mapping[str, Extent]) -> None:
    """Raise `FieldError` for blocks and heads beyond the model, and for lists that do not fit the windows."""
    for name in ("exposures", "parts", "heads", "weights"):
        for number, each in enumerate(getattr(trial, name)):
            extent = extents.get(each.stack, Extent())
            if extent.layers is not None and each.layer is not None and each.layer >= extent.layers:
                raise FieldError(
                    f"{name}[{number}].layer: a block of the {extent.layers} in stack {each.stack} is needed, not"
                    f" {each.layer}"
                )
            if isinstance(each, HeadTrial) and extent.heads is not None and each.head >= extent.heads:
                raise FieldError(
                    f"{name}[{number}].head: a head of the {extent.heads} in stack {each.stack} is needed, not"
                    f" {each.head}"
                )
    if len(trial.bytes) not in (0, len(trial.counts)):
        raise FieldError(f"bytes: as many numbers as counts are needed ({len(trial.counts)}), or none")
    left = max(0, len(trial.loss) - trial.tried_from)
    for name in ("parts", "heads"):
        for number, tried in enumerate(getattr(trial, name)):
            if any(len(each.loss) > left for each in tried.rescaled):
                raise FieldError(f"{name}[{number}].rescaled: losses of at most {count(left, 'window')} are needed")


def check_cell(key: Key, card: Card, cell: Cell, tokens: int | None) -> None:
    """Raise `FieldError` for statistics that no values of this measure have."""
    low, high = card.limits(tokens)
    moments = cell.moments
    rows = zip(
        *(array.flat for array in (moments.count, moments.total, moments.squares, moments.minimum, moments.maximum)),
        *(cell.peak.value.flat, cell.sketch.tally.cells()),
        strict=True,
    )
    for n, total, squares, least, most, peak, (buckets, counts) in rows:
        if int(counts.sum()) != n:
            raise FieldError(f"moments.count: {int(counts.sum())} is needed, as many as in sketch, not {n}")
        if n == 0:
            if total or squares or (least, most, peak) != (math.inf, -math.inf, -math.inf):
                raise FieldError("moments: sums of 0 are needed where count is 0")
            continue
        if not (low <= least <= most <= high):
            raise FieldError(
                f"moments.{'min' if not low <= least <= high else 'max'}: {key.measure} lies from {card.low:g} to"
                f" {card.high:g}, and min is not above max; {least:g} and {most:g} are stored"
            )
        if peak != most or (bucket_of(least), bucket_of(most)) != (buckets[0], buckets[-1]):
            raise FieldError("moments: min and max in the outer buckets of sketch, and a peak at max, are needed")
        first, last, many = units(least), units(most), int(n)
        if not many * first <= total <= many * last:
            raise FieldError("moments.total: a sum between count times min and count times max is needed")
        if not total * total <= many * squares or not squares <= (first + last) * total - many * first * last:
            raise FieldError("moments.squares: a sum of squares that values between min and max can have is needed")
    for name, label in cell.peak.where.items():
        if (label < NOWHERE).any():
            raise FieldError(f"peak.where['{name}']: a number counted from 0, or -1, is needed")
    for name, tally in cell.tallies.items():
        for n, (labels, counts) in zip(moments.count.flat, tally.cells(), strict=True):
            if (labels < 0).any() or counts.sum() > n:
                raise FieldError(f"tallies['{name}']: numbers counted from 0, at most one a value, are needed")


def units(value: float) -> int:
    """Return a float as a whole number of 2^-1074, which it is exactly."""
    numerator, denominator = float(value).as_integer_ratio()
    return (numerator << UNIT) // denominator


def check_means(key: Key, card: Card, means: NDArray[np.float64]) -> None:
    """Raise `FieldError` for means outside the range of the measure. NaN is a missing mean."""
    low, high = card.limits()
    if not (np.isnan(means) | ((means >= low) & (means <= high))).all():
        raise FieldError(f"{key.measure} at block {key.layer} lies from {card.low:g} to {card.high:g}")
