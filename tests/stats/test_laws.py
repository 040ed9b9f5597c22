"""One suite for every statistic: exact monoid laws, independence of batching, and an exact JSON round trip.

All comparisons are `==`: nothing here is approximate.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnscope.stats.moments import Moments
from attnscope.stats.peak import Peak, Tally
from attnscope.stats.sketch import QuantileSketch
from tests.stats.samples import batches


def _labels(values: np.ndarray) -> np.ndarray:
    """Small labels read off the bits of the values, so that they belong to the row and ties are common."""
    return (np.abs(values).view(np.int64) >> 50) % 4


def _peak(values: np.ndarray) -> Peak:
    return Peak.of(values, {"token": _labels(values), "channel": _labels(values + 1)})


KINDS: dict[str, tuple[Callable[[np.ndarray], Any], Callable[[tuple[int, ...]], Any], type[Any]]] = {
    "moments": (Moments.of, Moments.empty, Moments),
    "sketch": (QuantileSketch.of, QuantileSketch.empty, QuantileSketch),
    "tally": (lambda v: Tally.of(_labels(v) - 2), Tally.empty, Tally),
    "peak": (_peak, Peak.empty, Peak),
}


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_merge_is_associative_commutative_and_has_an_identity(kind: str, data: st.DataObject) -> None:
    of, empty, _ = KINDS[kind]
    values = data.draw(batches())
    a, b, c = (of(v) for v in values)
    assert a.merge(b).merge(c) == a.merge(b.merge(c))
    assert a.merge(b) == b.merge(a)
    assert a.merge(empty(values[0].shape[1:])) == a


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_batching_and_order_change_nothing(kind: str, data: st.DataObject) -> None:
    of, empty, _ = KINDS[kind]
    whole = np.concatenate(data.draw(batches()))
    order = data.draw(st.permutations(range(len(whole))))
    merged = empty(whole.shape[1:])
    for row in order:
        merged = merged.merge(of(whole[row : row + 1]))
    assert merged == of(whole)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_json_round_trip_is_exact_and_strict(kind: str, data: st.DataObject) -> None:
    of, _, cls = KINDS[kind]
    (values,) = data.draw(batches(1))
    thing = of(values)
    text = json.dumps(thing.to_json(), allow_nan=False)
    again = cls.from_json(json.loads(text), values.shape[1:])
    assert again == thing
    assert json.dumps(again.to_json(), allow_nan=False) == text


@pytest.mark.parametrize("kind", KINDS)
def test_different_statistics_are_not_equal(kind: str) -> None:
    of, _, _ = KINDS[kind]
    assert of(np.array([1.0, 2.0])) != of(np.array([1.0, 2.5]))
    assert of(np.array([1.0])) != "a word"


def test_merging_different_shapes_is_an_error() -> None:
    with pytest.raises(ValueError, match="do not merge"):
        Tally.empty((2,)).merge(Tally.empty((3,)))
    with pytest.raises(ValueError, match="do not merge"):
        Peak.empty((2,)).merge(Peak.empty(()))
