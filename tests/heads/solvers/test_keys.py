"""Frames of keys: exact coherences, the Welch bound, refusals that name the nearest usable width."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnscope.core.errors import RefusalError
from attnscope.heads.solvers.keys import (
    KINDS,
    Kind,
    alltop,
    best_kind,
    coherence,
    gaussian,
    low_coherence,
    make_keys,
    orthogonal_blocks,
    primes,
    reed_solomon,
    torus,
    welch_bound,
)


def made(n: int, width: int, kind: Kind, seed: int = 0) -> np.ndarray:
    return make_keys(n, width, kind, np.random.default_rng(seed), separated=False, dtype="float32").array


def brute_coherence(keys: np.ndarray) -> float:
    """Return the coherence pair by pair, from the definition."""
    pairs = [(i, j) for i in range(len(keys)) for j in range(i)]
    sizes = [float(np.linalg.norm(key)) for key in keys]
    return max(abs(float(keys[i] @ keys[j])) / sizes[i] / sizes[j] for i, j in pairs)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_unit_keys_above_the_welch_bound_and_the_same_ones_again(kind: Kind) -> None:
    keys = made(60, 26, kind, seed=3)
    assert keys.shape == (60, 26)
    assert keys.dtype == np.float64
    np.testing.assert_allclose(np.linalg.norm(keys, axis=1), 1, atol=1e-12)
    assert coherence(keys) == pytest.approx(brute_coherence(keys), abs=1e-12)
    assert coherence(keys) >= welch_bound(60, 26)
    np.testing.assert_array_equal(keys, made(60, 26, kind, seed=3))


@given(n=st.integers(2, 40), width=st.integers(2, 12), seed=st.integers(0, 5))
def test_no_frame_is_below_the_welch_bound(n: int, width: int, seed: int) -> None:
    for kind in ("gaussian", "orthogonal_blocks", "low_coherence", "torus"):
        assert coherence(made(n, width, kind, seed)) >= welch_bound(n, width) - 1e-9


def test_welch_bound_by_hand() -> None:
    assert welch_bound(4, 3) == pytest.approx(1 / 3)  # the corners of a tetrahedron attain the bound
    tetrahedron = np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]], dtype=np.float64)
    assert coherence(tetrahedron) == pytest.approx(1 / 3)
    assert welch_bound(3, 5) == 0


@pytest.mark.parametrize(
    ("p", "n", "degree"), [(3, 27, 2), (5, 25, 1), (5, 100, 2), (5, 125, 2), (7, 50, 2), (7, 49, 1)]
)
def test_reed_solomon_has_exactly_the_coherence_of_its_degree(p: int, n: int, degree: int) -> None:
    keys = reed_solomon(n, p * p, np.random.default_rng(0))
    assert coherence(keys) == pytest.approx(degree / p, abs=1e-12)
    assert set(np.unique(keys)) == {0.0, p**-0.5}
    assert ((keys > 0).sum(1) == p).all()


def test_reed_solomon_pads_with_zeros_and_says_which_width_would_do() -> None:
    padded = reed_solomon(30, 31, np.random.default_rng(0))
    assert not padded[:, 25:].any()
    np.testing.assert_array_equal(padded[:, :25], reed_solomon(30, 25, np.random.default_rng(0)))
    with pytest.raises(RefusalError, match="nearest usable width is 25") as refusal:
        reed_solomon(256, 12, np.random.default_rng(0))
    assert reed_solomon(256, int(re.findall(r"width is (\d+)", str(refusal.value))[0]), np.random.default_rng(0)).any()


@pytest.mark.parametrize("p", [5, 7, 11])
def test_alltop_meets_one_over_root_p_in_complex_form_and_stays_below_in_real_form(p: int) -> None:
    real = alltop(p * p, 2 * p, np.random.default_rng(0))
    complex_keys = real[:, :p] + 1j * real[:, p:]
    products = np.abs(complex_keys @ complex_keys.conj().T) - np.eye(p * p)
    assert products.max() == pytest.approx(p**-0.5, abs=1e-12)
    # Every product is 0 (same shift) or exactly 1 / sqrt(p), a property of cubes modulo p.
    assert np.minimum(np.abs(products), np.abs(products - p**-0.5)).max() < 1e-12
    assert coherence(real) <= p**-0.5 + 1e-12


def test_alltop_pads_and_refuses() -> None:
    assert not alltop(20, 13, np.random.default_rng(0))[:, 10:].any()
    with pytest.raises(RefusalError, match="nearest usable width is 34"):
        alltop(256, 20, np.random.default_rng(0))
    with pytest.raises(RefusalError, match="nearest usable width is 10"):
        alltop(4, 6, np.random.default_rng(0))


def test_descent_lowers_coherence_far_below_gaussian_keys() -> None:
    rng = np.random.default_rng
    before, after = coherence(gaussian(128, 24, rng(0))), coherence(low_coherence(128, 24, rng(0)))
    assert after < 0.5 * before
    assert after < 1.6 * welch_bound(128, 24)


def test_orthogonal_blocks_are_orthonormal_inside() -> None:
    keys = orthogonal_blocks(50, 20, np.random.default_rng(0))
    for first in (0, 20, 40):
        block = keys[first : first + 20]
        np.testing.assert_allclose(block @ block.T, np.eye(len(block)), atol=1e-12)


def test_products_on_the_torus_are_one_group_of_distances() -> None:
    """With a prime number of keys the torus looks the same from every key: sorted rows of the Gram matrix
    are equal.
    """
    keys = torus(31, 12, np.random.default_rng(0))
    gram = np.sort(keys @ keys.T, axis=1)
    np.testing.assert_allclose(gram, np.broadcast_to(gram[0], gram.shape), atol=1e-12)
    assert gram[0, -2] < 0.9
    circle = torus(12, 2, np.random.default_rng(0))
    assert np.sort(circle @ circle[0])[-2] == pytest.approx(np.cos(2 * np.pi / 12))
    with pytest.raises(RefusalError, match="nearest usable width is 2"):
        torus(12, 1, np.random.default_rng(0))


@given(k=st.sampled_from([2, 4]), n=st.integers(14, 40), seed=st.integers(0, 1000))
def test_any_k_keys_of_the_torus_are_a_face_in_width_3k(k: int, n: int, seed: int) -> None:
    """The query of the derivation, -|g|^2, needs no solver and is largest on S only."""
    rng = np.random.default_rng(seed)
    keys = torus(n, 3 * k, rng)
    waves = keys[:, : 3 * k // 2] + 1j * keys[:, 3 * k // 2 :]  # exp(i f . angles), up to one constant
    waves /= np.abs(waves)
    across, along = waves[:, 0], waves[:, 1]  # (0, 1) comes first, then (1, 0)
    rows = [along**f for f in range(k // 2 + 1)] + [across * along**f for f in range(1, k // 2 + 1)]
    support = rng.choice(n, k, replace=False)
    vanishing = np.linalg.svd(np.stack(rows, axis=1)[support])[2][-1].conj()
    height = -(np.abs(np.stack(rows, axis=1) @ vanishing) ** 2)
    # It is the product of the keys with one query: the best fit by keys and a constant leaves no residual.
    design = np.concatenate([keys, np.ones((n, 1))], axis=1)
    left = height - design @ np.linalg.lstsq(design, height)[0]
    np.testing.assert_allclose(left, 0, atol=1e-9)
    np.testing.assert_allclose(height[support], 0, atol=1e-20)
    assert np.delete(height, support).max() < -1e-15


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("width", [1, 2, 3, 5])
def test_few_keys_and_narrow_widths_give_finite_keys(n: int, width: int) -> None:
    for separated in (False, True):
        keys = make_keys(n, width, "auto", np.random.default_rng(0), separated=separated, dtype="float32")
        assert keys.array.shape == (n, width)
        assert np.isfinite(keys.array).all()
        assert keys.coherence >= keys.welch_bound - 1e-12


def test_choice_of_kind_follows_method_and_precision() -> None:
    assert best_kind(64, 64, separated=True, dtype="float32") == "orthogonal_blocks"
    assert best_kind(256, 16, separated=True, dtype="float32") == "torus"
    assert best_kind(256, 64, separated=True, dtype="bfloat16") == "low_coherence"
    assert best_kind(256, 64, separated=False, dtype="float32") == "low_coherence"


def test_refusals() -> None:
    with pytest.raises(RefusalError, match="at least one key"):
        made(0, 4, "gaussian")
    with pytest.raises(RefusalError, match="Did you mean 'gaussian'"):
        make_keys(4, 4, "gausian", np.random.default_rng(0), separated=False, dtype="float32")


def test_primes() -> None:
    assert primes(30) == [2, 3, 5, 7, 11, 13, 17, 19, 23, 29]
    assert primes(1) == []
    assert primes(-3) == []
