"""Colour ramps, colour scales, and maps as small SVGs.

A heat map is read by lightness, so a ramp changes lightness in equal steps (then it also survives colour blindness and
a black-and-white printer), and hue only helps to tell the steps apart. OKLab (Ottosson 2020,
https://bottosson.github.io/posts/oklab/) is a colour space in which equal distances look equal; to convert back to RGB,
multiply by a 3x3 matrix, cube the three numbers, and multiply by another matrix. Ramps run from pale to deep on light
pages and from deep to pale on dark ones, so that large values stand out.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from jaxtyping import Int

from attnscope.core.card import Card

Stop = tuple[float, float, float]
"""Lightness 0..1, chroma, hue in degrees."""

STEPS = 25
"""Steps in a ramp: in small cells the eye cannot tell two neighbouring steps apart."""

SEQUENTIAL: dict[str, tuple[Stop, ...]] = {
    "light": ((0.955, 0.018, 200.0), (0.62, 0.105, 225.0), (0.30, 0.115, 278.0)),
    "dark": ((0.285, 0.035, 268.0), (0.60, 0.115, 232.0), (0.93, 0.085, 175.0)),
}
DIVERGING: dict[str, tuple[Stop, ...]] = {
    "light": ((0.43, 0.125, 255.0), (0.955, 0.0, 255.0), (0.955, 0.0, 45.0), (0.50, 0.145, 45.0)),
    "dark": ((0.82, 0.105, 240.0), (0.285, 0.0, 240.0), (0.285, 0.0, 65.0), (0.82, 0.135, 65.0)),
}
SERIES: dict[str, tuple[str, ...]] = {
    # Okabe & Ito 2008, ordered by contrast against the page of each theme. The seventh, an indigo, is as far from the
    # other six as contrast allows, for colour-blind readers too (OKLab distance, Machado's matrices).
    "light": ("#0b62a4", "#c8500a", "#00795a", "#a2457e", "#5a5f66", "#8a6d00", "#2a1a5e"),
    "dark": ("#6cb8f0", "#f2a65a", "#4fcfa8", "#e39ac3", "#b4bac2", "#e5cf5b", "#7f78ff"),
}


def hex_of(lightness: float, chroma: float, hue: float) -> str:
    """Convert OKLCh to `#rrggbb`. A colour outside sRGB loses chroma, not lightness."""
    while True:
        a, b = chroma * math.cos(math.radians(hue)), chroma * math.sin(math.radians(hue))
        long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
        middle = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
        short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
        linear = (
            4.0767416621 * long - 3.3077115913 * middle + 0.2309699292 * short,
            -1.2684380046 * long + 2.6097574011 * middle - 0.3413193965 * short,
            -0.0041960863 * long - 0.7034186147 * middle + 1.7076147010 * short,
        )
        if chroma <= 0 or all(-1e-4 <= c <= 1 + 1e-4 for c in linear):
            return "#" + "".join(f"{round(255 * _gamma(min(max(c, 0.0), 1.0))):02x}" for c in linear)
        chroma -= 0.002


@cache
def sequential(theme: str, steps: int = STEPS) -> tuple[str, ...]:
    """Return the colours of small to large values."""
    return _ramp(SEQUENTIAL[theme], steps)


@cache
def diverging(theme: str, steps: int = STEPS) -> tuple[str, ...]:
    """Return a ramp for negative, zero and positive values. It has an odd number of steps, so that zero has its own
    colour."""
    low, mid_low, mid_high, high = DIVERGING[theme]
    half = steps // 2 + 1
    return _ramp((low, mid_low), half)[:-1] + _ramp((mid_high, high), half)


def colour_of(step: str) -> str:
    """Return the light colour of a style-sheet class: `q0` to `q24` are sequential, `d0` to `d24` diverging."""
    return (diverging if step.startswith("d") else sequential)("light")[int(step[1:])]


def _ramp(stops: tuple[Stop, ...], steps: int) -> tuple[str, ...]:
    """Return colours whose lightness runs evenly from first stop to last. Chroma and hue are interpolated."""
    colours = []
    for i in range(steps):
        t = i / (steps - 1)
        lightness = stops[0][0] + t * (stops[-1][0] - stops[0][0])
        spot = t * (len(stops) - 1)
        left = min(int(spot), len(stops) - 2)
        share = spot - left
        _, c0, h0 = stops[left]
        _, c1, h1 = stops[left + 1]
        colours.append(hex_of(lightness, c0 + share * (c1 - c0), h0 + share * (h1 - h0)))
    return tuple(colours)


def _gamma(channel: float) -> float:
    return 12.92 * channel if channel <= 0.0031308 else 1.055 * channel ** (1 / 2.4) - 0.055


def ink(colour: str) -> str:
    """Return black or white, whichever reads better on `#rrggbb`. Its contrast is at least 4.58.

    Contrast is (L1 + 0.05)/(L2 + 0.05) of relative luminances (WCAG 2). White and black are equally good on a colour
    with (L + 0.05)^2 = 1.05 * 0.05, where either has sqrt(21) = 4.58.
    """
    red, green, blue = (_linear(int(colour[place : place + 2], 16) / 255) for place in (1, 3, 5))
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return "#000000" if (luminance + 0.05) ** 2 > 1.05 * 0.05 else "#ffffff"


def _linear(channel: float) -> float:
    return channel / 12.92 if channel <= 0.04045 else float(((channel + 0.055) / 1.055) ** 2.4)


FILLED = 1 / 3  # if numbers fill a smaller share of the range than this, the map looks washed out
_ROUNDING = 1.001
_NOISE = 0.25  # an observed range spans at least this share of its largest value, so that noise is not magnified


@dataclass(frozen=True)
class Scale:
    low: float
    high: float
    why: str
    log: bool = False
    diverging: bool = False

    def share(self, values: np.ndarray) -> np.ndarray:
        """Return where values lie between `low` (0) and `high` (1)."""
        with np.errstate(invalid="ignore", divide="ignore"):
            if self.log:
                at = np.log(np.maximum(values, self.low) / self.low) / np.log(self.high / self.low)
            else:
                at = (values - self.low) / (self.high - self.low)
            return np.asarray(np.clip(at, 0, 1))

    def colours(self) -> dict[str, Any]:
        """Return the Vega-Lite scale."""
        return {
            "type": "log" if self.log else "linear",
            "domain": [self.low, self.high],
            "range": "diverging" if self.diverging else "heatmap",
            "clamp": True,
            "nice": False,
        }


def scale(values: np.ndarray, card: Card, bound: float | None = None) -> Scale:
    """Choose the range of a colour map. `bound` is the largest possible value at this sequence length, if known.

    The first rule that fits decides. Numbers of both signs: symmetric around zero. A measure with a fixed range: that
    range, so that a colour means the same in every report, unless the numbers fill less than a third of it. A measure
    bounded by the sequence length (entropy, at most ln n): up to that bound. Otherwise: the observed range.
    """
    finite = values[np.isfinite(values)]
    if card.low < 0 and (finite < 0).any():
        reach = float(np.abs(finite).max())
        return Scale(-reach, reach, "symmetric around 0, up to the largest number here", diverging=True)
    top = float(finite.max(initial=0.0))
    fits = bound is not None and np.isfinite(bound) and top <= _ROUNDING * bound
    if card.log:
        return _logarithmic(finite[finite > 0], bound if fits and bound and top > FILLED * bound else None)
    if fits and bound is not None and top > FILLED * bound:
        return Scale(card.low, bound, "up to the largest possible value at this length")
    if np.isfinite(card.low) and np.isfinite(card.high) and card.bound is None:
        seen = max(top - card.low, 0.0)
        if seen == 0 or seen > FILLED * (card.high - card.low):
            return Scale(card.low, card.high, "over the whole range of the measure")
        return Scale(card.low, card.low + round_up(seen), "up to a round number above the largest here")
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    low = max(min(low, high - _NOISE * abs(high)), card.low if np.isfinite(card.low) else -np.inf)
    return Scale(low, high if high > low else low + 1.0, "from the smallest to the largest number here")


def _logarithmic(positive: np.ndarray, bound: float | None) -> Scale:
    low, high = (float(positive.min()), float(positive.max())) if positive.size else (1.0, 10.0)
    if bound is not None and bound > low:
        return Scale(low, bound, "logarithmic, up to the largest possible value at this length", log=True)
    high = high if high > low else 10 * low
    return Scale(low, high, "logarithmic, from the smallest to the largest number here", log=True)


def round_up(value: float) -> float:
    """Return the next of 1, 2, 5, 10, 20, 50, ... at or above a positive number."""
    power = 10.0 ** np.floor(np.log10(value))
    return float(next(m * power for m in (1, 2, 5, 10) if m * power >= value))


MISSING, BROKEN = -1, -2
"""Colour steps of a place that was not measured (nothing is drawn), and of NaN or infinity (crossed out)."""


def strokes(steps: Int[np.ndarray, "column row"], ramp: str, at: Int[np.ndarray, " edge"] | None = None) -> str:
    """Return a map of [column, row] colour steps as SVG: one path per colour, one stroke per run of a colour.

    `ramp` is `d` for colours that diverge from zero, else `q`. Columns are one unit wide, or run from edge to edge of
    `at`.
    """
    columns, rows = steps.shape
    edges = np.arange(columns + 1) if at is None else at
    wide = columns if at is None else 1000
    runs_by_step: defaultdict[int, list[str]] = defaultdict(list)
    for row in range(rows):
        start = 0
        for column in range(1, columns + 1):
            if column == columns or steps[column, row] != steps[start, row]:
                length = max(edges[column] - edges[start], 1)  # so that two looks within one unit are both visible
                runs_by_step[int(steps[start, row])].append(f"M{edges[start]} {row}h{length}")
                start = column
    paths = "".join(
        f'<path class="{f"{ramp}{step}" if step >= 0 else "void"}" d="{"".join(runs)}"/>'
        for step, runs in sorted(runs_by_step.items())
        if step != MISSING
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="map" viewBox="0 -0.5 {wide} {rows}"'
        f' preserveAspectRatio="none" aria-hidden="true" focusable="false">{paths}</svg>'
    )
