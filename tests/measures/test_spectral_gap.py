import math

import pytest
import torch

from attnscope.measures.spectral_gap import spectral_gap


def _ask(scores, mask):
    parts = spectral_gap(scores=scores, query_mask=mask, key_mask=mask)
    return torch.stack([parts["sigma_1"].value, parts["sigma_2"].value], dim=-1)


def _whole(pattern):
    return torch.ones(pattern.shape[0], pattern.shape[2], dtype=torch.bool)


def test_by_hand(pattern_scores, identity, uniform, first_column):
    for pattern, first, second in ((identity, 1.0, 1.0), (uniform, 1.0, 0.0), (first_column, math.sqrt(8), 0.0)):
        values = _ask(pattern_scores(pattern), _whole(pattern)).flatten().tolist()
        assert values == pytest.approx([first, second], abs=1e-6)


def test_against_svd_and_bound(pattern_scores, random_pattern):
    pattern = random_pattern(0, 2, 3, 12, 12, causal=True)
    values = _ask(pattern_scores(pattern), _whole(pattern))
    torch.testing.assert_close(values.double(), torch.linalg.svdvals(pattern)[..., :2], rtol=1e-5, atol=1e-6)
    bound = pattern.sum(dim=-2).amax(dim=-1).sqrt()  # ||A||_2^2 <= ||A||_1 ||A||_inf
    assert (values[..., 0] <= bound * (1 + 1e-5)).all()


def test_invariant_under_any_order_of_rows_and_columns(pattern_scores, random_pattern):
    pattern = random_pattern(1, 2, 2, 10, 10)
    shuffled = pattern[..., torch.randperm(10), :][..., torch.randperm(10)]
    torch.testing.assert_close(
        _ask(pattern_scores(shuffled), _whole(pattern)),
        _ask(pattern_scores(pattern), _whole(pattern)),
        rtol=1e-5,
        atol=1e-6,
    )
