"""Usual ranges: every model counts the same, a model is judged by the others, and few models give no range."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnscope.commands.atlas.ranges import (
    Quantity,
    balanced_quantiles,
    balanced_shares,
    like,
    pools,
    range_of,
    reference,
    same_shape,
    size_class,
)
from attnscope.commands.atlas.record import Shape
from tests.commands.atlas.made import MEASURE, atlas, entry, layers_of
from tests.commands.compare.made import made

SINKS = Quantity(MEASURE, "value", "decoder", "self")
NUMBERS = st.lists(st.floats(-1e3, 1e3, allow_nan=False).map(lambda x: round(x, 3)), min_size=1, max_size=9)


def test_a_model_of_many_heads_counts_as_much_as_one_of_few() -> None:
    many, few = np.zeros(1000), np.ones(1)
    assert balanced_quantiles([many, few], (0.4, 0.6)) == (0.0, 1.0)
    assert balanced_shares([many, few], np.array([0.5])).tolist() == [0.5]


def test_quantiles_and_shares_by_hand() -> None:
    one, two = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    assert balanced_quantiles([one, two], (0.05, 0.5, 0.95)) == (1.0, 2.0, 4.0)
    assert balanced_shares([one, two], np.array([0.0, 2.0, 5.0])).tolist() == [0.0, (0.75 + 0.0) / 2, 1.0]


@given(st.lists(NUMBERS, min_size=1, max_size=5))
def test_shares_rise_with_the_number_and_stay_between_0_and_1(each: list[list[float]]) -> None:
    found = [np.array(pool) for pool in each]
    at = np.sort(np.concatenate(found))
    shares = balanced_shares(found, at)
    assert (np.diff(shares) >= -1e-12).all()
    assert shares.min() >= 0
    assert shares.max() <= 1


@given(st.lists(NUMBERS, min_size=1, max_size=5))
def test_at_least_nine_of_ten_numbers_lie_between_the_ends(each: list[list[float]]) -> None:
    found = [np.array(pool) for pool in each]
    low, high = balanced_quantiles(found, (0.05, 0.95))
    inside = np.mean([((pool >= low) & (pool <= high)).mean() for pool in found])
    assert inside >= 0.9 - 1e-9


def test_models_of_a_similar_size_are_preferred_if_there_are_five() -> None:
    small = [entry(f"s{n}", [0.1]) for n in range(5)]
    large = [entry(f"l{n}", [0.9], parameters=10**9) for n in range(4)]
    near = like([*small, *large], 2_000_000, SINKS)
    assert near is not None
    assert (near.kind, len(near.each)) == ("small decoders", 5)
    far = like([*small, *large], 10**9, SINKS)
    assert far is not None
    assert (far.kind, len(far.each)) == ("decoders", 9)
    assert like(small[:4], 1, SINKS) is None
    assert [size_class(n) for n in (29_999_999, 30_000_000, 300_000_000)] == ["small", "medium", "large"]


def test_stacks_of_another_kind_are_no_reference() -> None:
    encoders = [entry(f"e{n}", [0.1], kind="encoder") for n in range(9)]
    assert pools(encoders, SINKS) == ()


def test_models_of_one_shape_count_as_one() -> None:
    twins = [replace(entry("one", [value]), name=f"copy {value}", hash=str(value)) for value in (0.1, 0.2)]
    found = pools([*twins, entry("two", [0.9])], SINKS)
    assert [pool.tolist() for pool in found] == [[0.1, 0.2], [0.9]]
    assert same_shape(Shape(((2, 3),), 100), Shape(((2, 3),), 105))
    assert not same_shape(Shape(((2, 3),), 100), Shape(((2, 3),), 106))
    assert not same_shape(Shape(((2, 3),), 100), Shape(((2, 4),), 100))


def test_a_survey_is_judged_by_models_of_other_shapes_only() -> None:
    survey = made()
    stack = {"name": "decoder", "causal": True, "layers": layers_of("e9"), "heads": 2}
    model = {"hash": "other weights", "parameters": 1_020_000, "stacks": [stack]}
    survey = replace(survey, provenance={**survey.provenance, "model": model})
    others = [entry(f"e{n}", [n / 10, n / 10]) for n in range(9)]
    same = entry("e9", [1.0, 1.0])
    usual = reference(survey, MEASURE, "value", "decoder", "self", atlas(*others, same))
    assert usual is not None
    assert (usual.models, usual.highest) == (9, 0.8)
    assert usual.words == "usual: 0 to 0.8 in 9 small decoders"


def test_a_range_is_scaled_to_the_length_of_the_text() -> None:
    found = like([entry(f"e{n}", [0.1, 0.2, 0.3]) for n in range(5)], 1, SINKS)
    assert found is not None
    once, twice = range_of(found), range_of(found, 2.0)
    assert (twice.low, twice.median, twice.high) == pytest.approx((2 * once.low, 2 * once.median, 2 * once.high))
