"""Tally and peak, each with a case worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from attnscope.stats.peak import Peak, Tally


def test_tally_by_hand() -> None:
    tally = Tally.of(np.array([[5, -1], [5, 7], [2, 7]]))
    cells = [(labels.tolist(), counts.tolist()) for labels, counts in tally.cells()]
    assert cells == [([2, 5], [1, 2]), ([-1, 7], [1, 2])]
    assert tally.most_common() == [(5, 2 / 3), (7, 2 / 3)]
    assert tally.to_json() == [[2, 1, 3, 2], [-1, 1, 8, 2]]


def test_tally_ties_go_to_the_smallest_label() -> None:
    assert Tally.of(np.array([9, 3, 9, 3])).most_common() == [(3, 0.5)]
    assert Tally.empty((2,)).most_common() == [None, None]


def test_tally_ignores_labels_that_are_not_kept() -> None:
    tally = Tally.of(np.array([[1, 2], [3, 4]]), keep=np.array([[True, False], [False, False]]))
    assert tally.most_common() == [(1, 1.0), None]


def test_tally_refuses_labels_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="40 bits"):
        Tally.of(np.array([1 << 40]))


@pytest.mark.parametrize("rows", [[[1, 2, 0, 1]], [[1, 0]], [[1]], [], [[1, 1], [2, 2]]])
def test_tally_refuses_damaged_json(rows: list[list[int]]) -> None:
    with pytest.raises(ValueError):
        Tally.from_json(rows, ())


def test_peak_by_hand() -> None:
    values = np.array([[1.0, 5.0], [3.0, 5.0], [3.0, np.nan]])
    peak = Peak.of(values, {"token": np.array([[0, 4], [9, 2], [7, 0]])})
    assert peak.value.tolist() == [3.0, 5.0]
    assert peak.places() == [{"token": 7}, {"token": 2}]  # ties: the smaller token


def test_peak_ties_are_settled_by_the_first_name_then_the_next() -> None:
    where = {"channel": np.array([1, 1, 0]), "token": np.array([5, 4, 9])}
    assert Peak.of(np.array([2.0, 2.0, 2.0]), where).places() == [{"channel": 0, "token": 9}]
    assert Peak.of(np.array([2.0, 2.0, 1.0]), where).places() == [{"channel": 1, "token": 4}]


def test_peak_of_no_values_has_no_labels() -> None:
    peak = Peak.of(np.array([np.nan]), {"token": np.array([3])})
    assert peak.places() == [None]
    assert float(peak.value) == -np.inf
    assert peak.merge(Peak.of(np.array([1.0]), {"token": np.array([8])})).places() == [{"token": 8}]
