"""Doubly normalised attention: no key is explained away (arXiv:2009.14308)."""

import pytest
import torch
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.variants.doubly_normalised import doubly_normalised, pattern
from tests.variants.calls import ALL, CAUSAL, heads, softmax

N = 64


def adversarial() -> tuple[Tensor, Tensor]:
    """Logits at scale 1/2: one key that every query hates by 170, the others as they come."""
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
    rows = doubly_normalised(query, key, values, **ALL)
    torch.testing.assert_close(rows.sum(-1), torch.ones(1, 1, N, dtype=torch.float64))
    assert float(rows.sum(-2).min()) >= 1 / N


@pytest.mark.parametrize("seed", range(5))
def test_the_bound_holds_whatever_the_scores(seed: int) -> None:
    query, key, _ = heads(tokens=12, seed=seed)
    rows = pattern(6 * query, key, **ALL)
    assert float(rows.sum(-2).min()) >= 1 / 12


def test_causal_masks_are_refused() -> None:
    with pytest.raises(RefusalError, match="cannot be causal"):
        doubly_normalised(*heads(), **CAUSAL)
    past = torch.ones(9, 9, dtype=torch.bool).tril()[None, None]
    with pytest.raises(RefusalError, match="cannot be causal"):
        doubly_normalised(*heads(), **{**ALL, "visible": past})
