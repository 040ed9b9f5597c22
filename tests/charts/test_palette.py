from __future__ import annotations

import math
from itertools import pairwise

import pytest

from attnscope.charts.palette import SERIES, STEPS, diverging, hex_of, oklab_of, sequential


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
    assert (
        left[2] < -0.05 < 0.05 < right[2]
    )  # blue against orange: told apart by every kind of colour blindness


def test_large_values_stand_out_from_the_page() -> None:
    assert oklab_of(sequential("light")[0])[0] > 0.9
    assert oklab_of(sequential("light")[-1])[0] < 0.35
    assert oklab_of(sequential("dark")[0])[0] < 0.35
    assert oklab_of(sequential("dark")[-1])[0] > 0.85


def test_conversion_goes_there_and_back() -> None:
    for colour in (*SERIES["light"], *SERIES["dark"], "#000000", "#ffffff"):
        lightness, a, b = oklab_of(colour)
        assert hex_of(lightness, math.hypot(a, b), math.degrees(math.atan2(b, a))) == colour
