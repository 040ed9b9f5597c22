"""A long cycle and a disjoint row need width 3; patterns that fit width 2 are never refuted."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from attnscope.heads.accuracy import Accuracy
from attnscope.heads.bounds import lower_bounds
from attnscope.heads.generate import window
from attnscope.heads.pattern import Pattern


def cycles(*lengths: int, alone: int = 0) -> Pattern:
    columns, first = [], 0
    for length in lengths:
        here = first + np.arange(length)
        columns += np.stack([here, np.roll(here, -1)], axis=1).tolist()
        first += length
    rows = np.repeat(np.arange(len(columns)), 2)
    flat = [key for pair in columns for key in pair]
    singles = list(range(first, first + alone))
    return Pattern.of(
        np.concatenate([rows, len(columns) + np.arange(alone)]),
        np.array(flat + singles),
        np.ones(len(flat) + alone),
        n=len(columns) + alone,
        n_keys=first + alone,
        normalise=True,
    )


def cycle_bound(pattern: Pattern, accuracy: Accuracy | None = None) -> int:
    return lower_bounds(pattern, accuracy or Accuracy())["cycle"].width


@pytest.mark.parametrize(
    ("pattern", "width"),
    [
        (cycles(5, 5), 3),
        (cycles(5, 3), 3),
        (cycles(6, alone=1), 3),
        (cycles(12), 1),  # one cycle around the hull fits width 2
        (cycles(4, 4), 1),  # the proof does not cover short cycles
        (cycles(3, 3, 3), 1),
        (window(30, 2), 1),
    ],
)
def test_by_hand(pattern: Pattern, width: int) -> None:
    assert cycle_bound(pattern) == width


def test_rows_that_are_not_separated_prove_nothing() -> None:
    assert cycle_bound(cycles(5, 5), Accuracy(leak=0.6)) == 1


def separable_in_the_plane(pattern: Pattern, places: np.ndarray) -> bool:
    """Whether a line cuts every support off, in one of many directions."""
    angles = np.linspace(0, 2 * np.pi, 2000, endpoint=False)
    heights = places @ np.stack([np.cos(angles), np.sin(angles)])
    for a, b in itertools.pairwise(pattern.starts):
        support = np.zeros(pattern.n_keys, dtype=bool)
        support[pattern.columns[a:b]] = True
        if not (heights[support].min(axis=0) > heights[~support].max(axis=0)).any():
            return False
    return True


def test_one_cycle_does_fit_the_plane() -> None:
    angles = 2 * np.pi * np.arange(12) / 12
    assert separable_in_the_plane(cycles(12), np.stack([np.cos(angles), np.sin(angles)], axis=1))


@pytest.mark.parametrize("seed", range(4))
def test_no_random_points_in_the_plane_realise_a_forbidden_pattern(seed: int) -> None:
    """Return layouts close to width 2: all keys on or slightly inside a circle, cycles side by side or mixed."""
    pattern, rng = cycles(7, 5), np.random.default_rng(seed)
    assert cycle_bound(pattern) == 3
    for turn in range(20):
        angles = np.sort(rng.random(12)) * 2 * np.pi
        order = rng.permutation(12) if turn % 2 else np.arange(12)
        places = np.stack([np.cos(angles), np.sin(angles)], axis=1)[order] * (1 - 0.2 * rng.random((12, 1)))
        assert not separable_in_the_plane(pattern, places)
