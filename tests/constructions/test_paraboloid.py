"""Rows of two keys in width 3: the layout keeps what the derivation needs, and the head is certified."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from attnscope.constructions.paraboloid import layout, paraboloid
from attnscope.core.errors import RefusalError
from attnscope.heads.accuracy import Accuracy
from attnscope.heads.generate import union_of_permutations, window
from attnscope.heads.reduction import Chain
from attnscope.heads.rounding import certified

NOBODY = np.random.default_rng(0)


@given(st.lists(st.tuples(st.integers(1, 30), st.booleans()), min_size=1, max_size=12))
@example([(5, False)])
@settings(max_examples=100)
def test_every_other_key_is_farther_from_the_middle_of_a_pair(sizes: list[tuple[int, bool]]) -> None:
    """(x - a) . (x - b) is 1 or more on the grid, 1/2 in the triangles that close odd cycles and 3/4 just below one."""
    numbers = itertools.count()
    parts = [Chain(tuple(itertools.islice(numbers, size)), closed and size > 2) for size, closed in sizes]
    n, odd = sum(map(len, parts)), any(part.closed and len(part) % 2 for part in parts)
    places = layout(parts, n)
    assert len(np.unique(places.round(6), axis=0)) == n
    for part in parts:
        pairs = list(itertools.pairwise(part.keys)) + [(part.keys[-1], part.keys[0])] * part.closed
        for first, second in pairs:
            farther = ((places - places[first]) * (places - places[second])).sum(axis=1)
            farther[[first, second]] = np.inf
            assert farther.min() >= (0.5 if part.closed and len(part) % 2 else 0.75 if odd else 1.0)
            triangle = part.closed and len(part) % 2 == 1 and part.keys[-1] in (first, second)
            assert ((places[first] - places[second]) ** 2).sum() == (1.25 if triangle else 1.0)
            assert (4 * (places**2).sum(axis=1) % 1 == 0).all()  # short numbers: sums of products need not round


@pytest.mark.parametrize(("n", "seed"), [(2, 0), (9, 2), (64, 1), (256, 0), (1024, 1)])
def test_a_union_of_two_permutations_is_certified_in_width_three(n: int, seed: int) -> None:
    pattern = union_of_permutations(n, 2, seed)
    factors = paraboloid(pattern, 3, Accuracy(), NOBODY)
    certificate = certified(factors, pattern, Accuracy(), "paraboloid").certificate
    assert certificate.reached
    # |x|^2 is little above n / 2 and sharpness below 10: logits grow like n, not like its square
    assert certificate.max_logit < 16 * n + 64


def test_many_short_chains_fill_a_square() -> None:
    places = layout([Chain((2 * i, 2 * i + 1), False) for i in range(512)], 1024)
    assert np.ptp(places, axis=0).max() <= 2 * 32 + 2


def test_leaks_equal_the_goal() -> None:
    pattern = window(40, 2, weights="random")
    for leak in (0.1, 1e-4):
        accuracy = Accuracy(leak=leak)
        found = certified(paraboloid(pattern, 3, accuracy, NOBODY), pattern, accuracy, "paraboloid").certificate
        assert 0.4 * leak < found.leak < 0.6 * leak or found.leak < leak / 2  # half of the limit, where it binds


def test_other_patterns_are_refused() -> None:
    with pytest.raises(RefusalError, match="width 3, not 2"):
        paraboloid(window(8, 2), 2, Accuracy(), NOBODY)
    with pytest.raises(RefusalError, match="one or two keys"):
        paraboloid(union_of_permutations(8, 3, 0), 3, Accuracy(), NOBODY)
