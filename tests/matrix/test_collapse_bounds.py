"""The bounds hold on random blocks, and tighter ones use more information; coefficients of stochastic patterns."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnscope.matrix.collapse_bounds import (
    SPREAD_LIMIT,
    birkhoff_bound,
    centred_contraction,
    chained,
    collapse_order,
    cubic_constant,
    dobrushin,
    head_norms,
    mixing_strength,
    paper_bound,
    pattern_singular_values,
    power,
    stacked,
)
from attnscope.matrix.residual import composite_norm, residual_about_mean, residual_frobenius
from attnscope.matrix.similarity import diameter


class Layer:
    """One attention call written out, with weights and tokens of any size."""

    def __init__(self, seed: int, heads: int, n: int, width: int, dim: int, size: float, shift: float) -> None:
        draw = torch.Generator().manual_seed(seed)

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=draw, dtype=torch.float64)

        self.tokens = size * random(1, n, width) + shift * random(1, 1, width)
        self.query, self.key, self.value = (random(heads, width, dim) / width**0.5 for _ in range(3))
        self.output = random(heads, dim, width) / dim**0.5
        self.scale = dim**-0.5
        query, key = (torch.einsum("btw,hwd->bhtd", self.tokens, m) for m in (self.query, self.key))
        # biases on queries and keys must not matter
        logits = self.scale * (query + random(1, heads, 1, dim)) @ (key + random(1, heads, 1, dim)).mT
        self.patterns = logits.softmax(-1)
        weights = self.value @ self.output
        self.write = torch.einsum("bhts,bsw,hwv->btv", self.patterns, self.tokens, weights) + random(width)
        self.norms = head_norms(self.query, self.key, self.value, self.output)


layers = st.builds(
    Layer,
    seed=st.integers(0, 10**6),
    heads=st.integers(1, 4),
    n=st.integers(2, 9),
    width=st.integers(1, 7),
    dim=st.integers(1, 5),
    size=st.sampled_from([1e-3, 0.03, 0.3, 1.0, 4.0]),
    shift=st.sampled_from([0.0, 3.0]),
)
ROUNDING = 1e-12


@settings(max_examples=400)
@given(layers)
def test_no_bound_is_violated_and_tighter_ones_use_more_information(layer: Layer) -> None:
    truth = float(diameter(layer.write))
    before = float(diameter(layer.tokens))
    slack = ROUNDING * (1 + float(layer.write.abs().max()))
    a = float(mixing_strength(layer.patterns, layer.norms) * diameter(layer.tokens))
    taus, bounds = dobrushin(layer.patterns), birkhoff_bound(layer.tokens, layer.norms, layer.scale)
    b = float((bounds[0] * layer.norms.mixing).sum()) * before
    c = cubic_constant(layer.norms, layer.scale) * before**3
    assert truth <= a * (1 + 1e-9) + slack
    assert bool((taus <= bounds * (1 + 1e-9) + ROUNDING).all())
    assert a <= b * (1 + 1e-9) + slack
    assert b <= c * (1 + 1e-9)


@settings(max_examples=400)
@given(layers)
def test_theorem_2_2_holds_wherever_its_condition_does(layer: Layer) -> None:
    bound = paper_bound(layer.tokens, layer.query, layer.key, layer.norms, layer.scale)
    truth = float(composite_norm(residual_about_mean(layer.write)))
    if float(bound.spread) <= SPREAD_LIMIT:
        assert truth <= float(bound.residual) * (1 + 1e-9) + ROUNDING * (1 + float(layer.write.abs().max()))


@settings(max_examples=200)
@given(layers)
def test_a_skip_keeps_the_diameter_between_two_bounds(layer: Layer) -> None:
    before, after = float(diameter(layer.tokens)), float(diameter(layer.tokens + layer.write))
    strength = float(mixing_strength(layer.patterns, layer.norms))
    slack = ROUNDING * (1 + float(layer.write.abs().max()))
    assert (1 - strength) * before - slack <= after <= (1 + strength) * before + slack


def test_the_paper_bound_is_the_looser_one() -> None:
    """Over random blocks that meet the theorem's condition, the median slack of (c) is far smaller."""
    ratios = []
    for seed in range(100):
        layer = Layer(seed, heads=2, n=8, width=6, dim=3, size=0.3, shift=0.0)
        bound = paper_bound(layer.tokens, layer.query, layer.key, layer.norms, layer.scale)
        cubic = cubic_constant(layer.norms, layer.scale) * float(diameter(layer.tokens)) ** 3
        ours = cubic / float(diameter(layer.write))
        theirs = float(bound.residual) / float(composite_norm(residual_about_mean(layer.write)))
        ratios.append(theirs / ours)
    assert sorted(ratios)[50] > 5


def test_equal_tokens_stay_equal() -> None:
    layer = Layer(0, heads=2, n=4, width=3, dim=2, size=0.0, shift=1.0)
    assert float(mixing_strength(layer.patterns, layer.norms) * diameter(layer.tokens)) < 1e-14
    assert float(paper_bound(layer.tokens, layer.query, layer.key, layer.norms, layer.scale).residual) < 1e-30


def test_cubic_steps_in_logarithms() -> None:
    assert chained([2.0, 5.0], 0.1) == pytest.approx([-1, math.log10(2e-3), math.log10(5 * 8e-9)])
    depth, factor, first = 5, 0.3, 0.7
    closed = (3**depth - 1) / 2 * math.log10(factor) + 3**depth * math.log10(first)
    assert stacked(factor, first, depth)[-1] == pytest.approx(closed)  # Theorem 2.3
    assert stacked(7.0, 40.0, 96)[-1] > 1e45  # far outside floats, and finite as a logarithm
    assert stacked(1.0, 0.0, 2) == [-math.inf] * 3


def test_the_order_is_found_and_the_floor_is_not_fitted() -> None:
    values = [0.5]
    for _ in range(4):
        values.append(0.9 * values[-1] ** 3)
    order, pairs = collapse_order([*values, 1e-16, 1e-16], floor=1e-15)
    assert order == pytest.approx(3)
    assert pairs == sum(v > 1e-15 for v in values[1:])
    assert math.isnan(collapse_order([0.5, 0.1], floor=1e-15)[0])
    assert math.isnan(power([(2.0, 1.0), (2.0, 3.0)])[0])


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
    padded[:, :, :left, :], padded[:, :, left + 40 :, 0] = (0.125, 9.0)  # attention of padded rows does not matter
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
