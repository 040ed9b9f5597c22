"""Fixed keys that serve many patterns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnscope.commands.compile.fixed_keys import fixed_keys, queries_for
from attnscope.constructions.frame import frame
from attnscope.constructions.margin import margin
from attnscope.core.errors import RefusalError
from attnscope.heads.accuracy import Accuracy
from attnscope.heads.certificate import certify
from attnscope.heads.generate import block, sink_window, strided, union_of_permutations, window
from attnscope.heads.rounding import rounded
from attnscope.heads.solvers.keys import coherence, welch_bound

PATTERNS = {
    "permutations": union_of_permutations(128, 4, seed=7),
    "fewer": union_of_permutations(128, 2, seed=8),
    "window": window(128, 4),
    "causal window": window(128, 4, causal=True),
    "sink": sink_window(128, 4, causal=True),
    "strided": strided(128, 4),
    "block": block(128, 4),
}


@pytest.mark.parametrize(("method", "width"), [("frame", 56), ("margin", 20)])
def test_one_set_of_keys_serves_every_pattern(method: str, width: int) -> None:
    keys = fixed_keys(128, width, method=method)
    before = keys.array.tobytes()
    for pattern in PATTERNS.values():
        factors = queries_for(pattern, keys, method)
        assert factors.keys is keys.array
        certificate = certify(rounded(factors, pattern, "float32", method), pattern, Accuracy())
        assert certificate.reached, pattern.name
    assert keys.array.tobytes() == before


def test_default_keys_and_queries_fit_together() -> None:
    pattern = PATTERNS["permutations"]
    factors = queries_for(pattern, fixed_keys(128, 20))
    assert certify(rounded(factors, pattern, "float32", "margin"), pattern, Accuracy()).reached


def test_keys_have_their_kind_seed_and_coherence() -> None:
    keys = fixed_keys(60, 20, "low_coherence", seed=4)
    assert (keys.kind, keys.seed, keys.width) == ("low_coherence", 4, 20)
    assert keys.coherence == coherence(keys.array)
    assert keys.welch_bound == welch_bound(60, 20)
    np.testing.assert_array_equal(keys.array, fixed_keys(60, 20, "low_coherence", seed=4).array)
    assert not np.array_equal(keys.array, fixed_keys(60, 20, "low_coherence", seed=5).array)


def test_fixed_keys_are_those_the_constructions_use() -> None:
    pattern = union_of_permutations(64, 2, seed=0)
    for method, construction in (("frame", frame), ("margin", margin)):
        keys = fixed_keys(64, 12, seed=3, method=method)
        factors = construction(pattern, 12, Accuracy(), np.random.default_rng(3))
        np.testing.assert_array_equal(factors.keys, keys.array)
        np.testing.assert_array_equal(factors.queries, queries_for(pattern, keys, method).queries)


@given(kind=st.sampled_from(["gaussian", "orthogonal_blocks", "alltop", "torus"]), seed=st.integers(0, 500))
@settings(max_examples=15)
def test_margin_separates_whatever_interpolation_does(kind: str, seed: int) -> None:
    """The largest margin is positive if any is, so `margin` serves all rows that `frame` serves."""
    pattern, keys = union_of_permutations(40, 3, seed=seed), fixed_keys(40, 22, kind, seed=seed)
    assert queries_for(pattern, keys, "margin").notes["leaking"] <= queries_for(pattern, keys, "frame").notes["leaking"]


def test_permuting_rows_of_a_pattern_permutes_the_queries() -> None:
    pattern = union_of_permutations(48, 3, seed=0)
    order = np.random.default_rng(0).permutation(48)
    entries = np.argsort(order)[pattern.rows]
    shuffled = type(pattern).of(entries, pattern.columns, pattern.weights, n=48)
    keys = fixed_keys(48, 14)
    for method in ("frame", "margin"):
        straight, other = queries_for(pattern, keys, method).queries, queries_for(shuffled, keys, method).queries
        np.testing.assert_allclose(other, straight[order], rtol=1e-6, atol=1e-6)


def test_refusals() -> None:
    keys = fixed_keys(32, 8)
    with pytest.raises(RefusalError, match="make keys for 64"):
        queries_for(union_of_permutations(64, 2, seed=0), keys)
    with pytest.raises(RefusalError, match="Did you mean 'margin'"):
        queries_for(union_of_permutations(32, 2, seed=0), keys, "margins")
    with pytest.raises(RefusalError, match="Did you mean 'torus'"):
        fixed_keys(32, 8, "torrus")
    with pytest.raises(RefusalError, match="A seed of -1"):
        fixed_keys(32, 8, seed=-1)
    with pytest.raises(RefusalError, match="no precision called 'float31'"):
        fixed_keys(32, 8, dtype="float31")
    for method in ("frame", "margin"):
        with pytest.raises(RefusalError, match="width of 9 or more"):
            queries_for(union_of_permutations(32, 10, seed=0), keys, method)
