"""A - J equals its definition and does not lose rank in width (arXiv:2410.07799)."""

import math

import pytest
import torch
from torch import Tensor

from attnscope.variants.minus_uniform import minus_uniform, pattern
from tests.variants.calls import heads, inputs, softmax

N = 64


def markov(seed: int, tokens: int = N) -> tuple[Tensor, Tensor]:
    """Queries and keys whose pattern is softmax(sqrt(ln 2) G), G of independent normal entries."""
    rng = torch.Generator().manual_seed(seed)
    query = torch.randn(1, 1, tokens, tokens, generator=rng, dtype=torch.float64)
    return query, torch.eye(tokens, dtype=torch.float64)[None, None]


SCALE = math.log(2) ** 0.5


def above_one(stream: Tensor) -> float:
    """Return ||S||_F^2 / ||S||_2^2 - 1 for S = X X^T: how far the stable rank is above 1."""
    values = torch.linalg.svdvals(stream).square()
    return float(values[1:].square().sum() / values[0] ** 2)


def test_the_mean_of_all_values_is_taken_away() -> None:
    query, key, value = heads()
    expected = softmax(query, key) @ value - value.mean(-2, keepdim=True)
    torch.testing.assert_close(minus_uniform(inputs(query, key, value)), expected)


def test_causal_mean_is_over_earlier_tokens() -> None:
    query, key, value = heads()
    found = minus_uniform(inputs(query, key, value, causal=True))
    for token in range(value.shape[-2]):
        seen = slice(0, token + 1)
        weights = softmax(query[..., [token], :], key[..., seen, :])
        expected = weights @ value[..., seen, :] - value[..., seen, :].mean(-2, keepdim=True)
        torch.testing.assert_close(found[..., [token], :], expected)
    assert not found[..., 0, :].any(), "the first token sees itself alone, and its mean is itself"


def test_removing_the_mean_removes_the_one_large_singular_value() -> None:
    """s1 -> 1 and sqrt(n) s2 -> 2; without J the largest is of the size of s2."""
    query, key = markov(0)
    values = torch.linalg.svdvals(softmax(query, key, scale=SCALE)[0, 0])
    assert float(values[0]) == pytest.approx(1.0, abs=0.02)
    assert float(values[1]) * N**0.5 == pytest.approx(2.0, abs=0.3)
    left = pattern(inputs(query, key, scale=SCALE))[0, 0]
    assert float(torch.linalg.svdvals(left)[0]) * N**0.5 == pytest.approx(2.0, abs=0.3)


def stable_ranks(tokens: int, seeds: int = 12) -> tuple[Tensor, Tensor]:
    """Return stable ranks minus 1 after 1, 2 and 3 layers of softmax and of A - J, starting from the identity."""
    found = torch.zeros(2, seeds, 3, dtype=torch.float64)
    for seed in range(seeds):
        whole = apart = torch.eye(tokens, dtype=torch.float64)
        for layer in range(3):
            query, key = markov(100 * seed + layer, tokens)
            whole = softmax(query, key, scale=SCALE)[0, 0] @ whole
            apart = minus_uniform(inputs(query, key, apart[None, None], scale=SCALE))[0, 0]
            found[0, seed, layer], found[1, seed, layer] = above_one(whole), 1 + above_one(apart)
    return found[0], found[1]


def test_the_stable_rank_falls_to_one_with_softmax_and_stays_without_its_mean() -> None:
    """It falls with n as n^-1, n^-3, n^-5 after 1, 2, 3 layers, and not at all without J."""
    (few, _), (many, apart) = stable_ranks(64), stable_ranks(128)
    slopes = (many.log().mean(0) - few.log().mean(0)) / math.log(2)
    assert slopes.tolist() == pytest.approx([-1, -3, -5], abs=0.4)
    assert float(apart.min()) > 2
