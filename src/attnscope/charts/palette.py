"""Colours that mean the same to every eye: ramps of even lightness, made from OKLab.

A heat map is read by lightness, so a ramp must change lightness in equal steps (then it also survives
colour blindness and a black-and-white printer), and hue only helps to tell the steps apart. OKLab (Ottosson
2020, https://bottosson.github.io/posts/oklab/) is a space in which equal distances look equal; its inverse
is three cubes between two 3x3 matrices, written out below.

In both themes a small value lies close to the page and a large one stands out: light pages run pale to
deep, dark pages deep to pale.
"""

from __future__ import annotations

import math
from functools import cache

Stop = tuple[float, float, float]
"""Lightness 0..1, chroma, hue in degrees."""

STEPS = 25
"""Steps in a ramp: two neighbours differ by less than an eye can tell in small cells."""

SEQUENTIAL: dict[str, tuple[Stop, ...]] = {
    "light": ((0.955, 0.018, 200.0), (0.62, 0.105, 225.0), (0.30, 0.115, 278.0)),
    "dark": ((0.285, 0.035, 268.0), (0.60, 0.115, 232.0), (0.93, 0.085, 175.0)),
}
DIVERGING: dict[str, tuple[Stop, ...]] = {
    "light": ((0.43, 0.125, 255.0), (0.955, 0.0, 255.0), (0.955, 0.0, 45.0), (0.50, 0.145, 45.0)),
    "dark": ((0.82, 0.105, 240.0), (0.285, 0.0, 240.0), (0.285, 0.0, 65.0), (0.82, 0.135, 65.0)),
}
SERIES: dict[str, tuple[str, ...]] = {
    # Okabe & Ito 2008, ordered by contrast against the page of each theme.
    "light": ("#0b62a4", "#c8500a", "#00795a", "#a2457e", "#5a5f66", "#8a6d00"),
    "dark": ("#6cb8f0", "#f2a65a", "#4fcfa8", "#e39ac3", "#b4bac2", "#e5cf5b"),
}


def hex_of(lightness: float, chroma: float, hue: float) -> str:
    """OKLCh to `#rrggbb`; a colour that no screen has loses chroma, not lightness, until one has it."""
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
    """Small to large."""
    return _ramp(SEQUENTIAL[theme], steps)


@cache
def diverging(theme: str, steps: int = STEPS) -> tuple[str, ...]:
    """Less, the same, more: an odd number of steps, so that `the same` has a colour of its own."""
    low, mid_low, mid_high, high = DIVERGING[theme]
    half = steps // 2 + 1
    return _ramp((low, mid_low), half)[:-1] + _ramp((mid_high, high), half)


def _ramp(stops: tuple[Stop, ...], steps: int) -> tuple[str, ...]:
    """Lightness runs evenly from first stop to last; chroma and hue bend through the stops between."""
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
    """Black or white, whichever is read better on `#rrggbb`: the better one has a contrast of 4.58 at least.

    Contrast is (L1 + 0.05)/(L2 + 0.05) of relative luminances (WCAG 2). White and black are equally good on a colour
    with (L + 0.05)^2 = 1.05 * 0.05, where either has sqrt(21) = 4.58.
    """
    red, green, blue = (_linear(int(colour[place : place + 2], 16) / 255) for place in (1, 3, 5))
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return "#000000" if (luminance + 0.05) ** 2 > 1.05 * 0.05 else "#ffffff"


def _linear(channel: float) -> float:
    return channel / 12.92 if channel <= 0.04045 else float(((channel + 0.055) / 1.055) ** 2.4)
