"""Tensors that differ: by how much, and in which rows, columns and heads."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnscope.commands.compare.weights import Home, TensorChange, tensor_change

RANDOM = np.random.default_rng(0)
A = RANDOM.standard_normal((64, 96)).astype(np.float32)
HOME = Home("decoder", 2, "attention", 1, tuple((16 * n, 16 * n + 16) for n in range(6)))


def changed(after: np.ndarray, before: np.ndarray = A, home: Home = HOME) -> TensorChange:
    found = tensor_change("w", before, after.astype(np.float32), home)
    assert found is not None
    return found


def edited(where: Any, factor: float = 1.0, add: float = 0.0) -> np.ndarray:
    copy = A.copy()
    copy[where] = copy[where] * factor + add
    return copy


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (edited(17, 80.0), "row 17 ×80"),
        (edited(slice(3, 6), 0.5), "rows 3-5 ×0.5"),
        (edited(9, 0.0), "row 9 = 0"),
        (edited(np.s_[:, 32:48], -1.0), "columns 32-47 = head 2 ×-1"),
        (edited(np.s_[:, 34], 1.0, 3.0), "column 34 in head 2"),
        (edited(np.s_[:, 30:40], 1.0, 3.0), "columns 30-39 in heads 1-2"),
        (A * 3, "×3"),
        (A * 0, "= 0"),
        (A + RANDOM.standard_normal(A.shape), "everywhere"),
        (
            A
            + 1e-4 * RANDOM.standard_normal(A.shape)
            + np.eye(64, 96)[:, [5]] * 0
            + 7.0 * (np.arange(64) == 5)[:, None],
            "row 5 holds 100% of the difference",
        ),
    ],
)
def test_where_a_tensor_differs(after: np.ndarray, words: str) -> None:
    assert changed(after).words == words


def test_sizes_of_a_difference() -> None:
    found = changed(edited(17, 80.0))
    assert found.relative == pytest.approx(79 * np.linalg.norm(A[17]) / np.linalg.norm(A), rel=1e-5)
    assert found.share == pytest.approx(1 / 64)
    assert (found.stack, found.layer, found.part, found.shape) == ("decoder", 2, "attention", (64, 96))
    assert tensor_change("w", A, A.copy(), HOME) is None
    assert changed(np.ones((3, 3))).words == "another shape"
    assert math.isnan(changed(A, before=np.zeros_like(A)).relative)


def test_entries_of_vectors_and_broken_numbers() -> None:
    vector = np.ones(40, dtype=np.float32)
    one = vector.copy()
    one[7] = 80.0
    assert changed(one, vector, Home()).words == "entry 7 ×80"
    assert changed(3 * vector, vector, Home()).words == "×3"
    broken = A.copy()
    broken[0, 0] = np.nan
    assert changed(broken).words == "1 entry is NaN or infinite"


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 63), st.floats(2.0, 1000.0))
def test_a_scaled_row_is_found(row: int, factor: float) -> None:
    assert changed(edited(row, factor)).where.startswith(f"row {row} ×")
