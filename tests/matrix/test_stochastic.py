from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnscope.matrix.collapse_bounds import centred_contraction, dobrushin, pattern_singular_values
from attnscope.matrix.residual import residual_frobenius
from attnscope.matrix.similarity import diameter


def _pattern(seed: int, *shape: int, sharpness: float = 1.0, causal: bool = False) -> torch.Tensor:
    logits = sharpness * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    if causal:
        logits = logits.masked_fill(torch.ones(shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    return logits.softmax(dim=-1)


def _contraction(pattern: torch.Tensor, query_mask: torch.Tensor | None = None, key_mask: torch.Tensor | None = None):
    batch, heads, queries, keys = pattern.shape
    return centred_contraction(
        lambda x: pattern @ x,
        lambda y: pattern.mT @ y,
        query_mask=torch.ones(batch, queries, dtype=torch.bool) if query_mask is None else query_mask,
        key_mask=torch.ones(batch, keys, dtype=torch.bool) if key_mask is None else key_mask,
        heads=heads,
        dtype=torch.float64,
    )


def test_dobrushin_solved_by_hand():
    assert dobrushin(torch.eye(4)).item() == 1.0
    assert dobrushin(torch.full((4, 4), 0.25)).item() == 0.0
    assert dobrushin(torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]])).item() == 0.5
    many = torch.full((2, 150, 150), 1 / 150)
    many[1, 140] = torch.nn.functional.one_hot(torch.tensor(7), 150)  # found across blocks of rows
    # A float32 sum of 150 terms is off by 150 roundings at most, in whichever order it is added.
    assert dobrushin(many).tolist() == pytest.approx([0.0, 1 - 1 / 150], rel=0, abs=150 * 2.0**-24)


@given(st.integers(0, 2**31 - 1), st.floats(0.1, 6.0), st.booleans())
def test_the_diameter_shrinks_by_dobrushin(seed: int, sharpness: float, causal: bool):
    pattern = _pattern(seed, 2, 7, 7, sharpness=sharpness, causal=causal)
    tokens = torch.randn(2, 7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + 1))
    assert (diameter(pattern @ tokens) <= dobrushin(pattern) * diameter(tokens) + 1e-12).all()
    assert ((dobrushin(pattern) >= 0) & (dobrushin(pattern) <= 1 + 1e-12)).all()


def test_dobrushin_is_below_birkhoff():
    """tau(P) <= tanh(Delta/4), Delta the largest spread of log-ratios between two rows."""
    pattern = _pattern(0, 50, 6, 6, sharpness=0.7)
    logs = pattern.log()
    difference = logs[:, :, None] - logs[:, None]
    spread = (difference.amax(dim=-1) - difference.amin(dim=-1)).amax(dim=(-2, -1))
    assert (dobrushin(pattern) <= torch.tanh(spread / 4) + 1e-12).all()


def test_contraction_solved_by_hand():
    identity = torch.eye(12, dtype=torch.float64)[None, None]
    assert _contraction(identity).item() == pytest.approx(1.0)
    uniform = torch.full((1, 1, 12, 12), 1 / 12, dtype=torch.float64)
    assert _contraction(uniform).item() == pytest.approx(0.0, abs=1e-12)
    lazy = 0.25 * identity + 0.75 * uniform
    assert _contraction(lazy).item() == pytest.approx(0.25)


@given(st.integers(0, 2**31 - 1), st.integers(2, 24), st.floats(0.1, 8.0), st.booleans())
def test_the_contraction_always_holds(seed: int, n: int, sharpness: float, causal: bool):
    pattern = _pattern(seed, 2, 1, n, n, sharpness=sharpness, causal=causal)
    factor = _contraction(pattern).squeeze(1)
    centre = torch.eye(n, dtype=torch.float64) - 1 / n
    top = torch.linalg.eigvalsh(pattern.squeeze(1).mT @ centre @ pattern.squeeze(1))[:, -1].clamp_min(0)
    torch.testing.assert_close(factor, top.sqrt(), rtol=1e-6, atol=1e-7)
    tokens = torch.randn(2, n, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + 1))
    mixed = residual_frobenius(pattern.squeeze(1) @ tokens)
    assert (mixed <= factor * residual_frobenius(tokens) * (1 + 1e-9) + 1e-12).all()


@pytest.mark.parametrize("left", [0, 5])
def test_padding_is_invisible(left: int):
    pattern = _pattern(5, 2, 3, 40, 40, causal=True)
    padded = torch.zeros(2, 3, 48, 48, dtype=torch.float64)
    padded[:, :, left : left + 40, left : left + 40] = pattern
    padded[:, :, :left, :], padded[:, :, left + 40 :, 0] = (0.125, 9.0)  # what padded rows look at is nobody's concern
    mask = torch.zeros(2, 48, dtype=torch.bool)
    mask[:, left : left + 40] = True
    torch.testing.assert_close(_contraction(padded, mask, mask), _contraction(pattern), rtol=1e-7, atol=0.0)


def test_more_keys_than_queries():
    pattern = _pattern(6, 1, 2, 5, 9)
    ones = torch.ones(1, 5, dtype=torch.bool), torch.ones(1, 9, dtype=torch.bool)
    values = pattern_singular_values(
        lambda x: pattern @ x,
        lambda y: pattern.mT @ y,
        query_mask=ones[0],
        key_mask=ones[1],
        heads=2,
        dtype=torch.float64,
        count=5,
    )
    torch.testing.assert_close(values, torch.linalg.svdvals(pattern))
    assert _contraction(pattern).shape == (1, 2)


def test_causal_patterns_can_expand():
    """Rows on one key and rows apart: the factor of a causal pattern is not bounded by 1."""
    uniform_causal = torch.tril(torch.ones(64, 64, dtype=torch.float64))
    uniform_causal /= uniform_causal.sum(dim=-1, keepdim=True)
    factor = _contraction(uniform_causal[None, None]).item()
    assert 1.0 < factor < math.sqrt(64)
