"""A x and A^T y against the written-out pattern."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnscope.matrix import tiling
from attnscope.matrix.dense import dense_pattern
from attnscope.matrix.logits import apply, apply_transposed, with_lse
from attnscope.matrix.scores import Scores


def make(seed: int, rows: int, keys: int, **rule: Any) -> Scores:
    generator = torch.Generator().manual_seed(seed)
    query, key = (torch.randn(2, 4, rows, 8, generator=generator), torch.randn(2, 2, keys, 8, generator=generator))
    return Scores(query, key, 0.5, **rule)


@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"causal": True},
        {"causal": True, "window": 6},
        {"softcap": 2.0},
        {"sinks": torch.tensor([0.0, 1.0, -1.0, 3.0])},
        {"allowed": torch.rand(2, 1, 30, 21, generator=torch.Generator().manual_seed(9)) < 0.2},
        {"pattern": torch.rand(2, 4, 30, 21, generator=torch.Generator().manual_seed(9))},
    ],
)
@pytest.mark.parametrize("small_tiles", [True, False])
def test_products_equal_the_dense_ones(
    monkeypatch: pytest.MonkeyPatch, rule: dict[str, Any], small_tiles: bool
) -> None:
    if small_tiles:
        monkeypatch.setattr(tiling, "TILE_BYTES", 1024)
        monkeypatch.setattr(tiling, "TILE_KEYS", 8)
    scores = make(0, 30, 21, **rule)
    A = dense_pattern(scores)
    x, y = torch.randn(2, 4, 21, 3), torch.randn(2, 4, 30, 3)
    for known in (scores, with_lse(scores)):
        torch.testing.assert_close(apply(known, x).double(), A @ x.double(), rtol=0, atol=1e-5)
        torch.testing.assert_close(apply_transposed(known, y).double(), A.mT @ y.double(), rtol=0, atol=1e-5)
    exact = with_lse(scores, torch.float64)
    torch.testing.assert_close(apply(exact, x.double()), A @ x.double(), rtol=0, atol=1e-12)


@given(seed=st.integers(0, 2**16), rows=st.integers(1, 20), keys=st.integers(1, 20), causal=st.booleans())
def test_one_is_the_transpose_of_the_other(seed: int, rows: int, keys: int, causal: bool) -> None:
    scores = make(seed, rows, keys, causal=causal)
    x, y = torch.randn(2, 4, keys, 1).double(), torch.randn(2, 4, rows, 1).double()
    left, right = (y * apply(scores, x)).sum(), (apply_transposed(scores, y) * x).sum()
    torch.testing.assert_close(left, right)
    torch.testing.assert_close(apply(scores, torch.ones_like(x)), torch.ones_like(y))
