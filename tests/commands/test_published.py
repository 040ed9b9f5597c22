"""The paper's curves, and differences from ours."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from attnscope.commands.collapse.record import Published, differences, published
from attnscope.core.errors import RefusalError
from attnscope.papers.trials.random_shapes import residual_numbers


@pytest.mark.parametrize("name", ["BERT", "albert", "XLNet"])
@pytest.mark.parametrize("weights", ["random", "trained"])
def test_all_curves_are_there(name: str, weights: str) -> None:
    found = published(name, weights)
    assert list(found.curves) == ["san", "san+mlp", "san+skip", "whole"]
    assert {len(curve) for curve in found.curves.values()} == {13}
    assert found.curves["san"][-1] < 0.01 < found.curves["whole"][-1]


def test_values_of_the_paper() -> None:
    bert = published("BERT", "trained")
    assert bert.curves["san"][:6] == (0.6872, 0.6758, 0.3153, 0.1389, 0.0308, 0.0035)
    assert (bert.curves["san+skip"][-1], bert.curves["whole"][-1]) == (0.0743, 0.3096)


def test_weights_as_given_are_compared_with_trained_ones() -> None:
    assert published("BERT", "as given") == published("BERT", "trained")
    with pytest.raises(RefusalError, match="'borrowed'"):
        published("BERT", "borrowed")


def test_a_published_zero_means_below_half_a_digit() -> None:
    ours = {"san": SimpleNamespace(mean=(0.6, 1e-6, 1e-3)), "whole": SimpleNamespace(mean=(0.5,))}
    reference = Published("BERT", "random", {"san": (0.5, 0.0, 0.0)})
    found = differences(ours, reference)
    assert [round(d.apart, 6) for d in found] == [0.1, 0.0, 0.00095]


def test_nan_never_counts_as_agreement() -> None:
    """NaN gives a NaN difference, also from a published 0, and one NaN among shapes is not ignored."""
    ours = {"san": SimpleNamespace(mean=(0.5, math.nan, math.nan))}
    apart = [d.apart for d in differences(ours, Published("BERT", "random", {"san": (0.5, 0.1, 0.0)}))]
    assert apart[0] == 0
    assert all(map(math.isnan, apart[1:]))
    variants = ("san", "san+mlp", "san+skip", "whole")
    sound, broken = (
        {"seed": 0, "curves": {v: [value] * 4 for v in variants}, "largest_difference": {"san": value}}
        for value in (0.1, None)
    )
    for order in ([sound, broken], [broken, sound]):
        assert all(math.isnan(values[0]) for values in residual_numbers(order, (0,)).values())
    assert set(map(tuple, residual_numbers([sound, sound], (0,)).values())) == {(0.1,)}


@pytest.mark.parametrize(("name", "weights"), [("GPT", "random"), ("BERT", "frozen")])
def test_refusals(name: str, weights: str) -> None:
    with pytest.raises(RefusalError):
        published(name, weights)
