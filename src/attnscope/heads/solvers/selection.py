"""Selectors: which keys each query must score above all others, and queries and keys that do so in few dimensions.

A hand-built transformer demands less than a pattern does: the selected keys S of a row must lie on the same side of a
gap, but need not have equal logits. A row is fulfilled if

    gap_i = min over S of q_i . k_j  -  max over the rest of q_i . k_j

is at least the margin. Multiplying q_i multiplies its gap, so a row can be fulfilled exactly if gap_i > 0 and max_j
|q_i . k_j| / gap_i is at most max_logit / margin; and adding one vector to all keys moves all logits of a row alike, so
keys may be centred first. Equal rows need one query, equal columns one key: they are merged first, which removes most
of the work for selectors that compare values.

The search minimises a height made of smooth upper bounds z_i of -gap_i,

    z_i = lse over the rest of s_ij  +  lse over S of -s_ij   >=  -gap_i,        height = sum of ln(1 + e^(z_i + room)),

whose slope with respect to the logits is sigmoid(z_i + room) times softmax(s) over the rest, minus softmax(-s) over S.
There are three kinds of start. Ordered: keys on a curve on which half-spaces cut out every run of keys (the
trigonometric moment curve in even dimensions, a Chebyshev curve in odd ones), since hand-made selectors compare
numbers. Spectral: the leading singular vectors of the selector. Random: for all others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnscope.core.progress import Advance
from attnscope.heads.accuracy import Factors, KeyArray, QueryArray
from attnscope.heads.head import KeyTensor, QueryTensor
from attnscope.heads.solvers.descent import Adam

ROOM = 2.0  # the smooth gap is pushed this far beyond zero before the gradient of a row vanishes
AIM = 6.0  # gap for which lengths of queries and keys stay within `stretch`
RATE = 0.1
LOOK_EVERY = 20
MOST_STEPS, FEWEST_STEPS = 1500, 200
PATIENCE = 20  # a descent stops after this many checks in which the number of failing rows has not fallen
WORK = 2**31  # entries of the selector read in one descent, within the limits on steps
START_SCALE = 3.0
STARTS = ("ordered", "spectral", "random")


@dataclass(frozen=True, eq=False)
class Selection:
    """A boolean selector with equal rows and equal columns merged; `row_of` and `key_of` put them back."""

    chosen: Bool[np.ndarray, "row key"]
    row_of: Int[np.ndarray, " every_row"]
    key_of: Int[np.ndarray, " every_key"]

    @classmethod
    def of(cls, selector: Bool[np.ndarray, "every_row every_key"]) -> Selection:
        rows, row_of = _merged(selector)
        columns, key_of = _merged(rows.T)
        return cls(np.ascontiguousarray(columns.T), row_of, key_of)

    def spread(self, factors: Factors) -> Factors:
        """Turn factors of the merged selector into factors of the whole one."""
        return Factors(factors.queries[self.row_of], factors.keys[self.key_of], factors.notes)


def _merged(rows: Bool[np.ndarray, "row key"]) -> tuple[Bool[np.ndarray, "different key"], Int[np.ndarray, " row"]]:
    """Return the distinct rows in order of first appearance, and for each row the index of its equal among them."""
    _, first, which = np.unique(np.packbits(rows, axis=1), axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return rows[first[order]], np.argsort(order)[which.reshape(-1)]


def separated(selection: Selection, width: int, stretch: float, rng: np.random.Generator, advance: Advance) -> Factors:
    """Return the best queries and keys found at this width: gaps of 1 wherever a gap is possible within `stretch`.

    `stretch` is the largest allowed max |logit| / gap. Other rows get a gap as large as `stretch` allows.
    """
    best: Factors | None = None
    fewest = len(selection.chosen) + 1
    for start in STARTS:
        queries, keys = _start(start, selection.chosen, width, rng)
        pair, failing, steps = _descend(selection.chosen, queries, keys, stretch, advance)
        if failing < fewest:
            best, fewest = Factors(*pair, {"start": start, "iterations": steps, "converged": failing == 0}), failing
        if failing == 0:
            break
    assert best is not None
    return best


def gaps(logits: Float[Tensor, "row key"], chosen: Bool[Tensor, "row key"]) -> Float[Tensor, " row"]:
    """Return the smallest selected logit minus the largest other one; infinite if all keys are selected."""
    return logits.masked_fill(~chosen, torch.inf).amin(1) - logits.masked_fill(chosen, -torch.inf).amax(1)


def _start(
    kind: str, chosen: Bool[np.ndarray, "row key"], width: int, rng: np.random.Generator
) -> tuple[QueryTensor, KeyTensor]:
    """Return keys of this kind, and queries that each point to the middle of their selected keys."""
    n_keys = chosen.shape[1]
    centred = chosen - chosen.mean(1, keepdims=True)
    if kind == "ordered":
        # With one dimension per key, unit vectors are an exact solution.
        keys = np.eye(n_keys, width) if width >= n_keys else _curve(n_keys, width)
    elif kind == "spectral":
        vectors = np.linalg.svd(centred, full_matrices=False)[2][:width].T * n_keys**0.5
        keys = np.concatenate([vectors, rng.normal(size=(n_keys, width - vectors.shape[1]))], axis=1)
    else:
        keys = rng.normal(size=(n_keys, width))
    keys = keys - keys.mean(0)
    keys *= START_SCALE / np.maximum(np.linalg.norm(keys, axis=1).mean(), 1e-12)
    queries = centred @ keys
    queries *= START_SCALE / np.maximum(np.linalg.norm(queries, axis=1, keepdims=True), 1e-12)
    return torch.from_numpy(queries).float(), torch.from_numpy(keys).float()


def _curve(n_keys: int, width: int) -> KeyArray:
    """Return (cos t, sin t, cos 2t, ...) for even widths, and for odd ones the Chebyshev curve (cos(t/2), cos(2t/2),
    ...).
    """
    angle = 2 * np.pi * (np.arange(n_keys) + 0.5) / n_keys
    if width % 2:
        return np.asarray(np.cos(0.5 * angle[:, None] * np.arange(1, width + 1)))
    turns = angle[:, None] * np.arange(1, width // 2 + 1)
    return np.stack([np.cos(turns), np.sin(turns)], axis=2).reshape(n_keys, width)


def _descend(
    chosen: Bool[np.ndarray, "row key"], queries: Tensor, keys: Tensor, stretch: float, advance: Advance
) -> tuple[tuple[QueryArray, KeyArray], int, int]:
    """Return queries and keys after descent (queries scaled to gaps of 1), how many rows fail, and the steps taken."""
    selected = torch.from_numpy(chosen)
    on_queries, on_keys = Adam(queries), Adam(keys)
    steps = int(np.clip(WORK // chosen.size, FEWEST_STEPS, MOST_STEPS))
    best, fewest = _scaled(queries, keys, selected, stretch)
    radius = (stretch * AIM) ** 0.5
    step = latest = 0
    while fewest and step < steps and step - latest < PATIENCE * LOOK_EVERY:
        step += 1
        logits = queries @ keys.T
        rest, those = logits.masked_fill(selected, -torch.inf), (-logits).masked_fill(~selected, -torch.inf)
        pull = torch.sigmoid(rest.logsumexp(1) + those.logsumexp(1) + ROOM)[:, None]
        slope = pull * (rest.softmax(1).nan_to_num(0.0) - those.softmax(1))  # no gradient if all keys are selected
        for_queries, for_keys = slope @ keys, slope.T @ queries
        rate = RATE * min(1.0, 2 * (1 - step / steps) + 0.02)
        on_queries.step(for_queries, rate)
        on_keys.step(for_keys, rate)
        queries.renorm_(2, 0, radius)
        keys.renorm_(2, 0, radius)
        if step % LOOK_EVERY == 0 or step == steps:
            advance(f"width {keys.shape[1]}", step, steps)
            pair, failing = _scaled(queries, keys, selected, stretch)
            if failing < fewest:
                best, fewest, latest = pair, failing, step
    return best, fewest, step


@torch.no_grad()
def _scaled(
    queries: Tensor, keys: Tensor, selected: Bool[Tensor, "row key"], stretch: float
) -> tuple[tuple[QueryArray, KeyArray], int]:
    """Centre the keys, scale every query to a gap of 1 as far as `stretch` allows, and count the rows that miss it."""
    keys = keys.double() - keys.double().mean(0)
    queries = queries.double()
    logits = queries @ keys.T
    gap, largest = gaps(logits, selected), logits.abs().amax(1).clamp_min(1e-300)
    free = gap.isinf()
    holds = free | (largest <= stretch * gap)
    factor = torch.where(free, 0.0, torch.where(holds, 1 / gap, stretch / largest))
    return ((queries * factor[:, None]).numpy(), keys.numpy()), int((~holds).sum())
