import pytest
import torch

from attnscope.matrix.residual import residual_frobenius
from attnscope.measures.contraction import contraction


def _ask(scores, mask):
    return contraction(scores=scores, query_mask=mask, key_mask=mask)["value"].value


def _whole(pattern):
    return torch.ones(pattern.shape[0], pattern.shape[2], dtype=torch.bool)


def test_by_hand(pattern_scores, identity, uniform, first_column):
    for pattern, factor in ((identity, 1.0), (uniform, 0.0), (first_column, 0.0)):
        assert _ask(pattern_scores(pattern), _whole(pattern)).item() == pytest.approx(factor, abs=1e-6)
    lazy = 0.5 * identity + 0.5 * uniform
    assert _ask(pattern_scores(lazy), _whole(lazy)).item() == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_differences_between_tokens_never_shrink_less(pattern_scores, random_pattern, noise, causal):
    pattern = random_pattern(0, 3, 2, 10, 10, causal=causal)
    factor = _ask(pattern_scores(pattern), _whole(pattern))
    for head in range(2):
        mixed = residual_frobenius(pattern[:, head] @ noise)
        assert (mixed <= factor[:, head] * residual_frobenius(noise) * (1 + 1e-6)).all()


def test_invariant_under_a_common_order_of_tokens(pattern_scores, random_pattern):
    pattern = random_pattern(1, 2, 2, 10, 10)
    order = torch.randperm(10)
    torch.testing.assert_close(
        _ask(pattern_scores(pattern[..., order, :][..., order]), _whole(pattern)),
        _ask(pattern_scores(pattern), _whole(pattern)),
        rtol=1e-5,
        atol=1e-6,
    )
