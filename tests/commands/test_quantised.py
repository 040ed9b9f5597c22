"""Eight-bit weights: errors of quantisation, packing and unpacking."""

from __future__ import annotations

import base64
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnscope.commands.view.record import SIGNED_STEPS, STEPS, packed, quantised, restored, unpacked

ROUNDING = 2.0**-22  # of a weight of at most 1 in float32: its scale, its step, and the product, 2^-24 each


def rows(seed: int, queries: int, keys: int, sharpness: float) -> np.ndarray:
    logits = np.random.default_rng(seed).normal(size=(queries, keys)) * sharpness
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


@given(st.integers(0, 99), st.integers(1, 9), st.integers(1, 9), st.sampled_from([0.0, 1.0, 30.0]))
def test_error_of_a_weight_is_at_most_half_a_step_of_its_row(
    seed: int, queries: int, keys: int, sharpness: float
) -> None:
    weights = rows(seed, queries, keys, sharpness)
    codes, scales = unpacked(packed(*quantised(weights)), queries, keys)
    allowed = weights.max(-1, keepdims=True) / (2 * STEPS) + ROUNDING
    assert (np.abs(restored(codes, scales) - weights) <= allowed).all()
    assert (codes.max(-1) == STEPS).all()  # every row uses all steps, however diffuse it is


def test_a_causal_map_only_stores_its_triangle() -> None:
    weights = np.tril(rows(1, 6, 6, 1.0))
    codes, scales = quantised(weights)
    text = packed(codes, scales, causal=True)
    assert len(zlib.decompress(base64.b64decode(text))) == 4 * 6 + 6 * 7 // 2
    back, sizes = unpacked(text, 6, 6, causal=True)
    assert (back == codes).all()
    assert (sizes == scales).all()


def test_weights_with_signs() -> None:
    weights = np.array([[0.5, -1.0, 0.25], [0.0, 0.0, 0.0]])
    codes, scales = quantised(weights, signed=True)
    assert (np.abs(restored(codes, scales, signed=True) - weights) <= 1 / (2 * SIGNED_STEPS) + ROUNDING).all()
    assert (restored(codes, scales, signed=True)[1] == 0).all()


def test_a_row_of_zeros_stays_zero() -> None:
    codes, scales = quantised(np.zeros((2, 3)))
    assert not codes.any()
    assert not restored(codes, scales).any()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("not base64!", "a packed map"),
        (base64.b64encode(b"not deflated").decode(), "a packed map"),
        (packed(*quantised(np.ones((2, 2)))), "of 3 by 3 weights"),
        (packed(*quantised(np.ones((9, 9)))), "of 3 by 3 weights"),
        (packed(np.zeros((3, 3), np.uint8), np.full(3, np.nan, np.float32)), "finite scales"),
    ],
)
def test_text_that_is_not_a_packed_map_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        unpacked(text, 3, 3)
