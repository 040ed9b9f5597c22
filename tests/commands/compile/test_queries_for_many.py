"""Solving many patterns on the same keys equals solving them one by one."""

from __future__ import annotations

import numpy as np
import pytest

from attnscope.commands.compile.fixed_keys import fixed_keys, queries_for, queries_for_many
from attnscope.core.errors import RefusalError
from attnscope.heads.accuracy import Accuracy
from attnscope.heads.certificate import certified_rows, certify
from attnscope.heads.generate import sink_window, union_of_permutations, window
from attnscope.heads.rounding import rounded

ACCURACY = Accuracy()


@pytest.mark.parametrize(("k", "width"), [(1, 2), (2, 6), (2, 5), (4, 14), (4, 11)])
def test_every_row_that_queries_for_certifies_is_certified(k: int, width: int) -> None:
    """Also at widths where some rows have no query."""
    keys = fixed_keys(256, width)
    patterns = [union_of_permutations(256, k, seed=seed) for seed in range(3)]
    served = queries_for_many(keys).solve(patterns)
    for pattern, head, certified in zip(patterns, served.heads, served.certified, strict=True):
        slow = certified_rows(rounded(queries_for(pattern, keys), pattern, "float32", "margin"), pattern, ACCURACY)
        quick = certified_rows(head, pattern, ACCURACY)
        assert not (slow & ~quick).any()
        assert certified == bool(quick.all()) == certify(head, pattern, ACCURACY).reached
    if (k, width) in ((1, 2), (2, 6)):
        assert all(served.certified)


def test_patterns_of_every_kind_are_solved_together() -> None:
    keys = fixed_keys(96, 20)
    patterns = [
        union_of_permutations(96, 4, seed=0),
        window(96, 4, causal=True),
        sink_window(96, 3, causal=True),
        union_of_permutations(96, 1, seed=1),
    ]
    served = queries_for_many(keys).solve(patterns)
    assert all(served.certified)
    for pattern, head in zip(patterns, served.heads, strict=True):
        assert head.causal == pattern.causal
        assert certify(head, pattern, ACCURACY).reached


def test_cached_directions_serve_other_weights() -> None:
    keys = fixed_keys(64, 6)
    solver = queries_for_many(keys)
    first = solver.solve([union_of_permutations(64, 2, seed=0)])
    weights = np.random.default_rng(0).uniform(1, 8, 128)
    other = union_of_permutations(64, 2, seed=0)
    other = type(other).of(other.rows, other.columns, weights, n=64, normalise=True)
    for _ in range(2):
        served = solver.solve([other])
        assert first.certified == served.certified == [True]
        assert certify(served.heads[0], other, ACCURACY).reached


def test_refusals() -> None:
    keys = fixed_keys(32, 8)
    with pytest.raises(RefusalError, match="make keys for 64"):
        queries_for_many(keys).solve([union_of_permutations(64, 2, seed=0)])
    with pytest.raises(RefusalError, match="width of 9 or more"):
        queries_for_many(keys).solve([union_of_permutations(32, 10, seed=0)])
    with pytest.raises(RefusalError, match="queries_for"):
        queries_for_many(keys, Accuracy(dtype="bfloat16"))
    assert queries_for_many(keys).solve([]).heads == []
