from __future__ import annotations

import math
from itertools import pairwise

import pytest

from attnscope.reports.colours import SERIES, STEPS, diverging, hex_of, sequential


def oklab_of(colour: str) -> tuple[float, float, float]:
    """Convert `#rrggbb` to OKLab: the inverse of `hex_of`."""
    r, g, b = (_linear(int(colour[i : i + 2], 16) / 255) for i in (1, 3, 5))
    long = math.cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b)
    middle = math.cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b)
    short = math.cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b)
    return (
        0.2104542553 * long + 0.7936177850 * middle - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * middle + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * middle - 0.8086757660 * short,
    )


def _linear(channel: float) -> float:
    return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_ramps_change_lightness_in_equal_steps(theme: str) -> None:
    lightness = [oklab_of(colour)[0] for colour in sequential(theme)]
    steps = [b - a for a, b in pairwise(lightness)]
    assert len(lightness) == STEPS
    assert len({math.copysign(1, s) for s in steps}) == 1
    assert max(map(abs, steps)) < 1.35 * min(map(abs, steps))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_neighbours_look_equally_different(theme: str) -> None:
    colours = [oklab_of(colour) for colour in sequential(theme)]
    steps = [math.dist(a, b) for a, b in pairwise(colours)]
    assert max(steps) < 1.3 * min(steps)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_diverging_ramp_is_neutral_in_the_middle_and_even_on_both_sides(theme: str) -> None:
    colours = [oklab_of(colour) for colour in diverging(theme)]
    middle = colours[STEPS // 2]
    assert math.hypot(middle[1], middle[2]) < 0.003
    left, right = colours[0], colours[-1]
    assert abs(left[0] - right[0]) < 0.1
    # Blue against orange: told apart by every kind of colour blindness.
    assert left[2] < -0.05 < 0.05 < right[2]


def test_large_values_stand_out_from_the_page() -> None:
    assert oklab_of(sequential("light")[0])[0] > 0.9
    assert oklab_of(sequential("light")[-1])[0] < 0.35
    assert oklab_of(sequential("dark")[0])[0] < 0.35
    assert oklab_of(sequential("dark")[-1])[0] > 0.85


def test_conversion_goes_there_and_back() -> None:
    for colour in (*SERIES["light"], *SERIES["dark"], "#000000", "#ffffff"):
        lightness, a, b = oklab_of(colour)
        assert hex_of(lightness, math.hypot(a, b), math.degrees(math.atan2(b, a))) == colour
