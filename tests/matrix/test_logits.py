"""A x and A^T y against the written-out pattern; spread of logits, and the least entropy that a spread allows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnscope.matrix import tiling
from attnscope.matrix.dense import dense_logits, dense_pattern
from attnscope.matrix.logits import apply, apply_transposed, entropy_floor, logit_spread, with_lse
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


def obvious(scores: Scores) -> tuple[torch.Tensor, torch.Tensor]:
    logits = dense_logits(scores)
    seen = torch.isfinite(logits)
    keys = seen.sum(-1)
    mean = logits.masked_fill(~seen, 0.0).sum(-1, keepdim=True) / keys.clamp_min(1)[..., None]
    return (logits - mean).masked_fill(~seen, 0.0).square().sum(-1).sqrt(), keys.double()


@pytest.mark.parametrize("small_tiles", [False, True])
@pytest.mark.parametrize(
    "rule", [{"causal": True}, {}, {"causal": True, "window": 5}, {"softcap": 2.0, "sinks": torch.ones(4)}]
)
def test_logit_spread_equals_that_of_the_whole_matrix(monkeypatch, small_tiles, rule):
    if small_tiles:
        monkeypatch.setattr(tiling, "TILE_BYTES", 2048)
        monkeypatch.setattr(tiling, "TILE_KEYS", 11)
        monkeypatch.setattr(tiling, "PRODUCT_ROWS", 32)
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(2, heads, 40, 8, generator=generator, dtype=torch.float64) for heads in (4, 2))
    scores = Scores(query, key, 3.0, **rule)
    found, truth = logit_spread(scores, torch.float64), obvious(scores)
    torch.testing.assert_close(found[0], truth[0], rtol=1e-10, atol=1e-10)
    assert torch.equal(found[1], truth[1])
    given = logit_spread(replace(scores, pattern=dense_pattern(scores)), torch.float64)
    torch.testing.assert_close(given[0], truth[0], rtol=1e-8, atol=1e-8)


def test_one_high_logit_attains_the_floor():
    for n in (2, 5, 64):
        for sigma in (0.0, 0.7, 3.0, 12.0):
            s = torch.full((n,), -1 / (n * (n - 1)) ** 0.5, dtype=torch.float64)
            s[0] = ((n - 1) / n) ** 0.5
            s = sigma * s
            entropy = torch.special.entr(s.softmax(-1)).sum()
            floor = entropy_floor(s.norm(), torch.tensor(float(n), dtype=torch.float64))
            torch.testing.assert_close(floor, entropy, rtol=1e-9, atol=1e-12)


def test_no_random_row_and_no_descent_goes_below_the_floor():
    """20,000 rows of several kinds, and entropy driven down on the sphere from 600 starts."""
    generator = torch.Generator().manual_seed(1)
    for n in (2, 3, 4, 8, 40):
        s = torch.randn(4000, n, generator=generator, dtype=torch.float64)
        s = torch.where(torch.rand(4000, 1, generator=generator) < 0.5, s, s**3)
        s = s * torch.exp(2 * torch.randn(4000, 1, generator=generator, dtype=torch.float64))
        _above(s, n)
    for n in (3, 4, 7):
        start = torch.randn(200, n, generator=generator, dtype=torch.float64)
        size = torch.linspace(0.3, 8.0, 200, dtype=torch.float64)[:, None]
        s = _onto(start, size)
        for _ in range(150):
            p = s.softmax(-1)
            s = _onto(s + 0.3 * p * (s - (p * s).sum(-1, keepdim=True)), size)  # minus the gradient of H
        _above(s, n)


def _onto(s: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
    centred = s - s.mean(-1, keepdim=True)
    return size * centred / centred.norm(dim=-1, keepdim=True)


def _above(s: torch.Tensor, n: int) -> None:
    centred = s - s.mean(-1, keepdim=True)
    floor = entropy_floor(centred.norm(dim=-1), torch.full((len(s),), float(n), dtype=torch.float64))
    assert (torch.special.entr(s.softmax(-1)).sum(-1) >= floor - 1e-9).all()
