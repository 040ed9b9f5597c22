"""Queries by interpolation: the smallest query whose products with the keys of its support are c + ln A, exactly.

With K_S the support's keys as rows, the smallest solution of K_S q = c + ln A_S is

    q(c) = K_S^+ ln A_S  +  c K_S^+ 1,

so that the row has its ratios at once, and the offset c, which softmax does not see on the support, is free to be as
large as the leak onto the other keys asks. On keys of coherence mu another key receives at most
c k mu / (1 - (k - 1) mu) (Gershgorin), which stays below c when mu < 1 / (2k - 1): low coherence is all this needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from attnscope.heads.accuracy import Accuracy
from attnscope.heads.factors import Factors
from attnscope.heads.ratios import with_exact_ratios
from attnscope.patterns.pattern import Pattern
from attnscope.solvers.keys import Keys
from attnscope.solvers.settling import settled

_ROWS_AT_ONCE = 4096
_INEXACT = 1e-11
NAMED_ROWS = 20


def interpolated(pattern: Pattern, keys: Keys, accuracy: Accuracy) -> Factors:
    """Factors on these keys: exact ratios, and in every row the smallest offset that leaks no more than asked."""
    base, direction = interpolation(pattern, keys.array, np.arange(pattern.n))
    found = settled(base, direction, keys.array, pattern, accuracy)
    queries = with_exact_ratios(found.queries, keys.array, pattern)
    return Factors(queries, keys.array, {**keys.facts(), **leaking(~found.met)})


def leaking(rows: np.ndarray) -> Mapping[str, Any]:
    """The notes on rows that leak more than asked whatever the scale: how many, and the first of them."""
    return {"leaking": int(rows.sum()), "leaking_rows": np.flatnonzero(rows)[:NAMED_ROWS].tolist()}


def interpolation(
    pattern: Pattern, keys: Float[np.ndarray, "key width"], rows: Int[np.ndarray, " row"]
) -> tuple[Float[np.ndarray, "row width"], Float[np.ndarray, "row width"]]:
    """K_S^+ ln A_S and K_S^+ 1 of these rows."""
    support, weights, real = pattern.padded()
    base, direction = np.empty((len(rows), keys.shape[1])), np.empty((len(rows), keys.shape[1]))
    for first in range(0, len(rows), _ROWS_AT_ONCE):
        part = slice(first, first + _ROWS_AT_ONCE)
        some = rows[part]
        wanted = np.stack([np.where(real[some], np.log(weights[some]), 0), real[some].astype(np.float64)], axis=-1)
        chosen = keys[support[some]] * real[some][..., None]
        base[part], direction[part] = np.moveaxis(_smallest(chosen, wanted, ~real[some]), -1, 0)
    return base, direction


def _smallest(
    chosen: Float[np.ndarray, "row k width"], wanted: Float[np.ndarray, "row k two"], padding: np.ndarray
) -> Float[np.ndarray, "row width two"]:
    """K_S^T (K_S K_S^T)^-1 wanted, by the k x k Gram matrix; rows whose keys are too dependent for that, by the SVD."""
    flipped = np.swapaxes(chosen, 1, 2)
    gram = chosen @ flipped
    places = np.arange(gram.shape[1])
    gram[:, places, places] += padding
    if gram.shape[1] > chosen.shape[2]:
        return np.asarray(np.linalg.pinv(chosen) @ wanted)
    try:
        answer = flipped @ np.linalg.solve(gram, wanted)
        answer += flipped @ np.linalg.solve(gram, wanted - chosen @ answer)
    except np.linalg.LinAlgError:
        return np.asarray(np.linalg.pinv(chosen) @ wanted)
    scale = np.abs(wanted).max((1, 2))
    inexact = ~(np.abs(wanted - chosen @ answer).max((1, 2)) <= _INEXACT * scale)
    if inexact.any():
        answer[inexact] = np.linalg.pinv(chosen[inexact]) @ wanted[inexact]
    return np.asarray(answer)
