"""Compressed selectors select the right keys by the margin, at proved widths where these are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnscope.commands.compile.compress import Compressed, compress, selected_keys
from attnscope.core.errors import RefusalError

N = 16
ROW, KEY = np.arange(N)[:, None], np.arange(N)[None]
KNOWN: dict[str, tuple[np.ndarray, int]] = {
    "up to": (KEY <= ROW, 1),
    "parity": ((ROW + KEY) % 2 == 0, 1),
    "equal": (ROW == KEY, 2),
    "other": (ROW != KEY, 2),
    "near": (abs(ROW - KEY) <= 2, 2),
    "same remainder": (ROW % 5 == KEY % 5, 2),
    "shuffled": (np.random.default_rng(0).permutation(N)[:, None] == KEY, 2),
}


def holds(found: Compressed, selector: np.ndarray) -> None:
    """Recompute the certificate in numpy from the tensors, one row at a time."""
    queries, keys = found.head.queries.double().numpy(), found.head.keys.double().numpy()
    logits = queries @ keys.T / found.width**0.5
    worst = np.inf
    for row, chosen in zip(logits, selector, strict=True):
        if not chosen.all():
            worst = min(worst, row[chosen].min() - row[~chosen].max())
    assert worst >= found.certificate.asked_margin
    assert found.certificate.margin <= worst + 1e-9  # sums in another order differ in the last digit
    assert np.abs(logits).max() <= found.certificate.max_logit + 1e-9
    assert found.certificate.max_logit <= found.certificate.asked_max_logit


@pytest.mark.parametrize("name", KNOWN)
def test_selectors_of_programs_reach_the_proved_width(name: str) -> None:
    selector, width = KNOWN[name]
    found = compress(selector)
    assert found.certificate.reached
    assert found.width == width
    assert found.proved_minimal
    holds(found, selector)


def test_half_precision_pays_with_width_for_smaller_logits() -> None:
    selector = KNOWN["equal"][0]
    found = compress(selector, dtype="bfloat16")
    assert found.certificate.reached
    assert found.head.dtype == "bfloat16"
    assert 2 <= found.width <= 4
    assert found.certificate.max_logit <= 50
    holds(found, selector)


def test_the_margin_bounds_what_other_keys_get() -> None:
    selector = KNOWN["near"][0]
    attention = compress(selector).head.attention().numpy()
    assert np.where(selector, 0, attention).sum(1).max() <= 0.01


def test_scores_select_their_highest_entries() -> None:
    scores = np.array([[1.0, 5.0, 5.0], [2.0, 0.0, -3.0], [-1.0, -1.0, -1.0]])
    expected = np.array([[False, True, True], [True, False, False], [True, True, True]])
    assert np.array_equal(selected_keys(scores), expected)
    assert np.array_equal(selected_keys(torch.tensor(scores)), expected)
    holds(compress(scores, margin=3.0), expected)


def test_equal_rows_and_columns_share_their_vectors() -> None:
    found = compress(KNOWN["same remainder"][0])
    assert torch.equal(found.head.queries[0], found.head.queries[5])
    assert torch.equal(found.head.keys[1], found.head.keys[11])


def test_a_width_that_is_too_small_is_reported_with_its_rows() -> None:
    found = compress(KNOWN["equal"][0], width=1)
    assert not found.certificate.reached
    assert not found.proved_minimal
    assert found.certificate.failing == len(found.certificate.failing_rows) > 0
    assert found.width == 1


def test_a_width_that_is_asked_for_is_given() -> None:
    found = compress(KNOWN["equal"][0], width=5)
    assert found.certificate.reached
    assert found.width == 5
    assert not found.proved_minimal


def test_the_same_seed_gives_the_same_head() -> None:
    selector = np.random.default_rng(1).random((6, 6)) < 0.4
    selector[:, 0] |= ~selector.any(1)
    one, again = compress(selector, seed=3), compress(selector, seed=3)
    assert torch.equal(one.head.queries, again.head.queries)
    assert one.to_json() | {"seconds": 0} == again.to_json() | {"seconds": 0}


def test_an_interruption_keeps_the_best_head() -> None:
    selector = np.random.default_rng(2).random((12, 12)) < 0.5
    calls: list[str] = []

    def progress(stage: str, done: int, total: int) -> None:
        calls.append(stage)
        if "found" in stage:
            raise KeyboardInterrupt

    found = compress(selector, progress=progress)
    assert found.interrupted
    assert found.certificate.reached
    holds(found, selector)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 10**6), st.sampled_from(["float32", "float64", "bfloat16"]))
@settings(max_examples=8)
def test_every_selector_can_be_compressed(rows: int, keys: int, seed: int, dtype: Any) -> None:
    """The width is at most the number of different keys, and the recomputed certificate agrees."""
    rng = np.random.default_rng(seed)
    selector = rng.random((rows, keys)) < 0.5
    selector[np.arange(rows), rng.integers(keys, size=rows)] = True
    found = compress(selector, dtype=dtype, seed=seed)
    assert found.certificate.reached
    assert found.bounds.best.width <= found.width <= keys
    holds(found, selector)


@pytest.mark.parametrize(
    ("selector", "options", "sentence"),
    [
        (np.ones(3, dtype=bool), {}, "is not a matrix: give one of queries by keys"),
        (np.zeros((0, 3), dtype=bool), {}, "is not a matrix: give one of queries by keys"),
        (np.array([[True, False], [False, False]]), {}, "Row 1 selects no key"),
        (np.array([[1.0, np.nan]]), {}, "Row 0 of the scores is not finite"),
        (np.array([["a", "b"]]), {}, "truth values or scores"),
        (np.eye(3, dtype=bool), {"margin": 0.0}, "A margin of 0 does not separate"),
        (np.eye(3, dtype=bool), {"margin": float("nan")}, "does not separate keys"),
        (np.eye(3, dtype=bool), {"margin": 9.0, "max_logit": 4.0}, "allow a max_logit above 4.5"),
        (np.eye(3, dtype=bool), {"width": 0}, "choose 1 or more"),
    ],
)
def test_what_is_no_selector_is_refused(selector: np.ndarray, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RefusalError, match=sentence):
        compress(selector, **options)
