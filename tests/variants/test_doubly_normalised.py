"""Doubly normalised attention: no key is explained away (arXiv:2009.14308)."""

import pytest
import torch
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.variants.doubly_normalised import doubly_normalised, pattern
from tests.variants.calls import heads, inputs, softmax

N = 64


def adversarial() -> tuple[Tensor, Tensor]:
    """Return logits at scale 1/2: -170 for one key from every query, random for the others."""
    rng = torch.Generator().manual_seed(0)
    query = torch.randn(1, 1, N, 16, generator=rng, dtype=torch.float64)
    key = torch.randn(1, 1, N, 16, generator=rng, dtype=torch.float64)
    query[..., 0], key[..., 0] = 1.0, 0.0
    key[..., 5, 0] = -340.0
    return query, key


def test_every_key_keeps_at_least_one_nth() -> None:
    query, key = adversarial()
    mass = softmax(query, key).sum(-2)
    assert float(mass.min()) < 1e-60
    values = torch.eye(N, dtype=torch.float64)[None, None]
    rows = doubly_normalised(inputs(query, key, values))
    torch.testing.assert_close(rows.sum(-1), torch.ones(1, 1, N, dtype=torch.float64))
    assert float(rows.sum(-2).min()) >= 1 / N


@pytest.mark.parametrize("seed", range(5))
def test_the_bound_holds_whatever_the_scores(seed: int) -> None:
    query, key, _ = heads(tokens=12, seed=seed)
    rows = pattern(inputs(6 * query, key))
    assert float(rows.sum(-2).min()) >= 1 / 12


def test_causal_masks_are_refused() -> None:
    with pytest.raises(RefusalError, match="cannot be causal"):
        doubly_normalised(inputs(*heads(), causal=True))
    past = torch.ones(9, 9, dtype=torch.bool).tril()[None, None]
    with pytest.raises(RefusalError, match="cannot be causal"):
        doubly_normalised(inputs(*heads(), visible=past))
