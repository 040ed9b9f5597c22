"""The range of a colour scale: of the measure, of the sequence length, around zero, or observed; and its
description."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attnscope.commands.scan.survey.readings import Uniform
from attnscope.reports.colours import Scale, round_up, scale
from tests.reports.charts.sample_model import CARDS

SHARE = CARDS["sink_mass"]
ENTROPY = replace(CARDS["entropy"], low=0.0, high=12.0, bound="entropy")


def ends(found: Scale) -> tuple[float, float]:
    return found.low, found.high


def test_shares_keep_their_range_where_numbers_fill_it() -> None:
    assert ends(scale(np.array([0.1, 0.6, np.nan]), SHARE)) == (0.0, 1.0)
    assert ends(scale(np.array([0.01, 0.03]), SHARE)) == (0.0, 0.05)
    assert ends(scale(np.array([]), SHARE)) == ends(scale(np.array([np.nan]), SHARE)) == (0.0, 1.0)


def test_entropy_runs_to_what_the_length_allows_and_never_to_what_any_length_could() -> None:
    """4.56 nats is ln 96: a map up to 12 nats would be washed out."""
    found = scale(np.array([1.0, 4.5]), ENTROPY, 4.56)
    assert ends(found) == (0.0, 4.56)
    assert "at this length" in found.why
    unknown = scale(np.array([1.0, 4.5]), ENTROPY)
    assert ends(unknown) == (1.0, 4.5)
    assert "here" in unknown.why


def test_a_bound_that_the_numbers_pass_is_not_theirs() -> None:
    assert ends(scale(np.array([1.0, 6.0]), ENTROPY, 4.56)) == (1.0, 6.0)


def test_numbers_of_both_signs_run_to_either_side_of_zero() -> None:
    found = scale(np.array([-3.0, 1.0]), CARDS["qk_spectrum"])
    assert ends(found) == (-3.0, 3.0)
    assert found.diverging
    assert found.share(np.array([0.0])).tolist() == [0.5]


def test_logarithms_leave_zero_out() -> None:
    found = scale(np.array([0.0, 2.0, 8.0]), replace(ENTROPY, log=True, bound="keys"), 9.0)
    assert (*ends(found), found.log) == (2.0, 9.0, True)
    assert found.share(np.array([2.0, np.sqrt(18.0), 9.0])) == pytest.approx([0, 0.5, 1])


def test_noise_is_not_magnified_by_the_colour_scale() -> None:
    assert ends(scale(np.array([4.0, 4.0]), ENTROPY)) == (3.0, 4.0)


@pytest.mark.parametrize(("value", "top"), [(1.0, 1.0), (1.1, 2.0), (3.4, 5.0), (70.0, 100.0), (0.03, 0.05)])
def test_round_tops(value: float, top: float) -> None:
    assert round_up(value) == pytest.approx(top, rel=1e-12)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("n", [2, 3, 7, 96])
def test_bounds_at_a_length_are_what_the_widest_head_reaches(n: int, causal: bool) -> None:
    """Every row of a brute-force head: all keys alike for entropy and number, the farthest key for distance."""
    seen = [range(i + 1) if causal else range(n) for i in range(n)]
    bound = Uniform(float(n), causal)
    assert bound.entropy == pytest.approx(np.mean([np.log(len(keys)) for keys in seen]))
    assert bound.keys == pytest.approx(np.mean([len(keys) for keys in seen]))
    farthest = float(np.mean([max(abs(i - j) for j in keys) for i, keys in enumerate(seen)]))
    assert farthest <= bound.distance + 1e-12
    assert bound.distance - farthest == pytest.approx(0.0 if causal or n % 2 == 0 else 1 / (4 * n))
