"""The bounds hold on random layers, in the order of what they know; and the pieces they are made of."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnscope.matrix.collapse_bounds import (
    SPREAD_LIMIT,
    birkhoff_bound,
    chained,
    collapse_order,
    cubic_constant,
    dobrushin,
    head_norms,
    mixing_strength,
    paper_bound,
    power,
    product_norm,
    stacked,
)
from attnscope.matrix.residual import composite_norm, residual_about_mean
from attnscope.matrix.similarity import diameter


class Layer:
    """One attention layer written out, weights and tokens of any size."""

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
def test_no_bound_is_violated_and_each_is_looser_than_the_one_that_knows_more(layer: Layer) -> None:
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
    """Median slack over random layers at which the theorem's condition holds: (c) is far closer to the truth."""
    ratios = []
    for seed in range(100):
        layer = Layer(seed, heads=2, n=8, width=6, dim=3, size=0.3, shift=0.0)
        bound = paper_bound(layer.tokens, layer.query, layer.key, layer.norms, layer.scale)
        cubic = cubic_constant(layer.norms, layer.scale) * float(diameter(layer.tokens)) ** 3
        ours = cubic / float(diameter(layer.write))
        theirs = float(bound.residual) / float(composite_norm(residual_about_mean(layer.write)))
        ratios.append(theirs / ours)
    assert sorted(ratios)[50] > 5


def test_norms_of_products_without_the_products() -> None:
    left, right = torch.randn(3, 9, 4, dtype=torch.float64), torch.randn(3, 4, 7, dtype=torch.float64)
    torch.testing.assert_close(product_norm(left, right), torch.linalg.matrix_norm(left @ right, 2))
    wide = torch.randn(2, 3, 5, dtype=torch.float64)  # heads wider than the stream
    torch.testing.assert_close(product_norm(wide, wide.mT), torch.linalg.matrix_norm(wide @ wide.mT, 2))


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
