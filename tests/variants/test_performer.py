"""FAVOR+ (arXiv:2009.14794): features that estimate softmax without bias."""

import torch

from attnscope.core.variant import Size
from attnscope.variants.performer import pattern, performer
from tests.variants.calls import heads, inputs, softmax

SIZE = Size(heads=2, dim=4, width=8)


def drawn(features: int, seed: int = 0) -> torch.Tensor:
    return performer.start(SIZE, features=features, seed=seed)["projection"].double()


def test_directions_are_orthogonal_in_blocks_and_every_seed_draws_others() -> None:
    one = drawn(8)
    for block in one.split(4):
        products = block @ block.mT
        assert float((products - products.diag().diag()).abs().max()) < 1e-5
    assert torch.equal(one, drawn(8))
    assert not torch.allclose(one, drawn(8, seed=1))
    lengths = torch.cat([drawn(400, seed).square().sum(-1) for seed in range(5)])
    assert abs(float(lengths.mean()) - 4) < 4 * (8 / len(lengths)) ** 0.5  # chi-squared: mean d, variance 2 d


def test_the_mean_over_redraws_is_the_exponential() -> None:
    """Within four standard errors of the draws themselves."""
    query, key = torch.tensor([0.5, -0.3, 0.2, 0.1]), torch.tensor([-0.2, 0.4, 0.6, 0.1])
    draws = []
    for seed in range(64):
        exponents = [drawn(16, seed).float() @ one - one.square().sum() / 2 for one in (query, key)]
        draws.append(float((exponents[0] + exponents[1]).exp().mean()))
    found = torch.tensor(draws)
    assert abs(float(found.mean() - (query @ key).exp())) < 4 * float(found.std()) / 8


def test_more_features_come_nearer_to_softmax() -> None:
    query, key = (one / 2 for one in heads(tokens=12)[:2])
    exact = softmax(query, key)
    errors = [
        sum(float((pattern(inputs(query, key), projection=drawn(count, seed)) - exact).norm()) for seed in range(4))
        for count in (8, 128, 2048)
    ]
    assert errors[1] < errors[0] / 2
    assert errors[2] < errors[1] / 2


def test_large_logits_stay_finite_in_float32() -> None:
    query, key, value = (one.float() for one in heads(tokens=32))
    found = performer(inputs(12 * query, 12 * key, value, causal=True), projection=drawn(64).float())
    assert bool(found.isfinite().all())
    assert float(found.abs().max()) <= float(value.abs().max()) * (1 + 1e-5)
