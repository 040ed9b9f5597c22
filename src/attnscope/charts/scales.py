"""What a colour scale spans, and why: a person who compares two colours must know what they are measured against.

In this order: numbers of both signs run to either side of zero. A measure with a range of its own (a share of
attention) keeps it, so that one colour means one number in every report, unless the numbers fill less than a third of
it. A measure that the length of a sequence bounds (entropy, at most ln n) runs up to that bound. All else runs over
what was seen.
"""

from __future__ import annotations

from dataclasses import dataclass

import altair as alt
import numpy as np

from attnscope.core.card import Card

FILLED = 1 / 3  # of a range: with less in it, a map is washed out
_ROUNDING = 1.001
_NOISE = 0.25  # a range that was only seen is at least this share of its largest value: noise should look like noise


@dataclass(frozen=True)
class Scale:
    low: float
    high: float
    why: str
    log: bool = False
    diverging: bool = False

    def share(self, values: np.ndarray) -> np.ndarray:
        """Where numbers stand between the ends, from 0 to 1."""
        with np.errstate(invalid="ignore", divide="ignore"):
            if self.log:
                at = np.log(np.maximum(values, self.low) / self.low) / np.log(self.high / self.low)
            else:
                at = (values - self.low) / (self.high - self.low)
            return np.asarray(np.clip(at, 0, 1))

    def colours(self) -> alt.Scale:
        """The same for a chart."""
        return alt.Scale(
            type="log" if self.log else "linear",
            domain=[self.low, self.high],
            range="diverging" if self.diverging else "heatmap",
            clamp=True,
            nice=False,
        )


def scale(values: np.ndarray, card: Card, bound: float | None = None) -> Scale:
    """`bound` is the most that the measure can be at the length of the sequences, where that is known."""
    finite = values[np.isfinite(values)]
    if card.low < 0 and (finite < 0).any():
        reach = float(np.abs(finite).max())
        return Scale(-reach, reach, "to either side of 0, as far as the largest number here", diverging=True)
    top = float(finite.max(initial=0.0))
    fits = bound is not None and np.isfinite(bound) and top <= _ROUNDING * bound
    if card.log:
        return _logarithmic(finite[finite > 0], bound if fits and bound and top > FILLED * bound else None)
    if fits and bound is not None and top > FILLED * bound:
        return Scale(card.low, bound, "up to the most that is possible at this length")
    if np.isfinite(card.low) and np.isfinite(card.high) and card.bound is None:
        seen = max(top - card.low, 0.0)
        if seen == 0 or seen > FILLED * (card.high - card.low):
            return Scale(card.low, card.high, "over all that the measure can be")
        return Scale(card.low, card.low + round_up(seen), "up to a round number above the largest here")
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    low = max(min(low, high - _NOISE * abs(high)), card.low if np.isfinite(card.low) else -np.inf)
    return Scale(low, high if high > low else low + 1.0, "from the smallest to the largest number here")


def _logarithmic(positive: np.ndarray, bound: float | None) -> Scale:
    low, high = (float(positive.min()), float(positive.max())) if positive.size else (1.0, 10.0)
    if bound is not None and bound > low:
        return Scale(low, bound, "logarithmic, up to the most that is possible at this length", log=True)
    high = high if high > low else 10 * low
    return Scale(low, high, "logarithmic, from the smallest to the largest number here", log=True)


def round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, 50, ... at or above a positive number."""
    power = 10.0 ** np.floor(np.log10(value))
    return float(next(m * power for m in (1, 2, 5, 10) if m * power >= value))
