"""Names at the ends of lines stay in order, apart and visible, and move no further than needed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from attnscope.reports.theme import LINE, end_labels, moved_apart

PLACES = st.lists(st.floats(0.0, 100.0), min_size=1, max_size=5).map(sorted)


@given(PLACES)
def test_they_are_apart_and_in_sight(places: list[float]) -> None:
    moved = moved_apart(places, 14.0, 0.0, 100.0)
    assert all(b - a >= 14.0 - 1e-9 for a, b in itertools.pairwise(moved))
    assert min(moved) >= -1e-9
    assert max(moved) <= 100.0 + 1e-9


@given(PLACES)
def test_what_is_apart_already_stays(places: list[float]) -> None:
    spread = [place + 20.0 * number for number, place in enumerate(places)]
    assert moved_apart(spread, 14.0, 0.0, 300.0) == pytest.approx(spread)


def test_the_movement_is_the_least() -> None:
    places = [10.0, 12.0, 13.0, 60.0, 61.0]
    slow = minimize(
        lambda x: float(((x - places) ** 2).sum()),
        np.arange(5) * 20.0,
        constraints=[{"type": "ineq", "fun": lambda x: np.diff(x) - 14.0}],
        tol=1e-12,
    )
    assert moved_apart(places, 14.0, -1e3, 1e3) == pytest.approx(slow.x, abs=1e-4)  # SLSQP stops at about 1e-6


@pytest.mark.parametrize("log", [True, False])
def test_names_stand_where_lines_end_unless_they_would_touch(log: bool) -> None:
    domain = (1e-4, 1.0) if log else (0.0, 1.0)
    ends = {"low": (3, 0.01), "high": (3, 0.9), "twin": (3, 0.899)}
    rows = {row["name"]: row for row in end_labels(ends, log=log, domain=domain, height=300)}
    assert list(rows) == ["high", "twin", "low"]
    assert all(row["x"] == 3 for row in rows.values())
    if log:
        assert rows["low"]["y"] == pytest.approx(0.01)
        pixels = 300 / 4 * np.log10(rows["high"]["y"] / rows["twin"]["y"])
    else:
        pixels = 300 * (rows["high"]["y"] - rows["twin"]["y"])
    assert pixels == pytest.approx(LINE)
