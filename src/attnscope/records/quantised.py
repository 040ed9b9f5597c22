"""An attention map in eight bits a weight, packed for a page, and back.

    codes, scales = quantised(weights)                  a row at a time: codes times scale / 255
    packed(codes, scales, causal=True)                  deflated, in base64; above the diagonal nothing is kept
    restored(*unpacked(text, 512, 512, causal=True))

Every row has a scale of its own, its largest weight m: a weight a is kept as round(255 a / m). The error is then half
a step, m / 510, at most 1 / 510 = 0.00196 where rows sum to one. A scale for the whole map would be smaller to keep
and would lose every diffuse row beside one that looks at a single token. Where weights have signs (attention that was
exchanged), a step is m / 127 to either side of code 128.
"""

from __future__ import annotations

import base64
import binascii
import zlib

import numpy as np
from jaxtyping import Float, Float32, UInt8

STEPS, SIGNED_STEPS, ZERO = 255, 127, 128
LEVEL = 6  # of deflate: 9 takes three times as long for 4% less


def quantised(
    weights: Float[np.ndarray, "*heads query key"], *, signed: bool = False
) -> tuple[UInt8[np.ndarray, "*heads query key"], Float32[np.ndarray, "*heads query"]]:
    """Codes and the scale of every row; a row of zeros has scale 0."""
    scales = np.abs(weights).max(-1).astype(np.float32)
    steps = (SIGNED_STEPS if signed else STEPS) / np.where(scales > 0, scales, 1).astype(weights.dtype)
    codes = np.rint(weights * steps[..., None])
    return (codes + ZERO if signed else codes).clip(0, STEPS).astype(np.uint8), scales


def restored(
    codes: UInt8[np.ndarray, "*heads query key"], scales: Float32[np.ndarray, "*heads query"], *, signed: bool = False
) -> Float32[np.ndarray, "*heads query key"]:
    """The weights that codes stand for."""
    step = scales[..., None] / np.float32(SIGNED_STEPS if signed else STEPS)
    return (codes.astype(np.float32) - np.float32(ZERO if signed else 0)) * step


def packed(
    codes: UInt8[np.ndarray, "query key"], scales: Float32[np.ndarray, " query"], *, causal: bool = False
) -> str:
    """Scales, then codes row by row (of a causal map up to the diagonal), deflated and in base64."""
    kept = codes[np.tril_indices(len(codes))] if causal else codes
    return base64.b64encode(zlib.compress(scales.astype("<f4").tobytes() + kept.tobytes(), LEVEL)).decode("ascii")


def unpacked(
    text: str, queries: int, keys: int, *, causal: bool = False
) -> tuple[UInt8[np.ndarray, "query key"], Float32[np.ndarray, " query"]]:
    """What `packed` was given; `ValueError` where the text holds something else. Above the diagonal codes are 0."""
    entries = queries * (queries + 1) // 2 if causal else queries * keys
    size = 4 * queries + entries
    try:
        unfolding = zlib.decompressobj()
        raw = unfolding.decompress(base64.b64decode(text, validate=True), size + 1)  # never more than it should be
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"a packed map is needed ({error})") from error
    if len(raw) != size:
        raise ValueError(f"a map of {queries} by {keys} weights is needed")
    scales = np.frombuffer(raw, "<f4", queries).astype(np.float32)
    if not (np.isfinite(scales).all() and (scales >= 0).all()):
        raise ValueError("scales of rows that are numbers are needed")
    given = np.frombuffer(raw, np.uint8, entries, 4 * queries)
    if not causal:
        return given.reshape(queries, keys).copy(), scales
    codes = np.zeros((queries, keys), np.uint8)
    codes[np.tril_indices(queries)] = given
    return codes, scales
