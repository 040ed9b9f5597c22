from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnscope.matrix.similarity import diameter, token_cosine


def _pairs(tokens: torch.Tensor) -> torch.Tensor:
    unit = tokens / tokens.norm(dim=-1, keepdim=True)
    cosine = unit @ unit.mT
    n = tokens.shape[-2]
    return (cosine.sum(dim=(-2, -1)) - cosine.diagonal(dim1=-2, dim2=-1).sum(dim=-1)) / (n * (n - 1))


def test_solved_by_hand():
    equal = torch.tensor([1.0, 2.0]).expand(1, 4, 2)
    assert token_cosine(equal).item() == pytest.approx(1.0, abs=1e-6)
    assert diameter(equal).item() == 0.0
    opposite = torch.tensor([[[1.0, 0.0], [-3.0, 0.0]]])
    assert token_cosine(opposite).item() == pytest.approx(-1.0)
    assert diameter(opposite).item() == 4.0
    axes = torch.eye(5)[None]
    assert token_cosine(axes).item() == pytest.approx(0.0, abs=1e-7)
    assert diameter(axes).item() == pytest.approx(2.0**0.5)


def test_one_token_agrees_with_itself_and_zeros_agree_with_nothing():
    assert token_cosine(torch.ones(1, 1, 3)).item() == 1.0
    assert token_cosine(torch.zeros(1, 3, 3)).item() == 0.0


@given(st.integers(0, 2**31 - 1), st.integers(2, 12), st.integers(1, 6))
def test_the_identity_equals_the_pairs(seed: int, rows: int, width: int):
    tokens = torch.randn(2, rows, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    value = token_cosine(tokens)
    torch.testing.assert_close(value, _pairs(tokens))
    assert (value >= -1 / (rows - 1) - 1e-12).all()
    torch.testing.assert_close(token_cosine(tokens * torch.rand(2, rows, 1, dtype=torch.float64).add(0.1)), value)
    torch.testing.assert_close(diameter(tokens), torch.cdist(tokens, tokens).amax(dim=(-2, -1)))
    torch.testing.assert_close(diameter(tokens + 5.0), diameter(tokens))


@pytest.mark.parametrize("left", [0, 3])
def test_padding_is_invisible(left: int):
    tokens = torch.randn(3, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) + 10
    padded = torch.full((3, 9, 4), torch.nan, dtype=torch.float64)
    mask = torch.zeros(3, 9, dtype=torch.bool)
    padded[:, left : left + 6], mask[:, left : left + 6] = tokens, True
    torch.testing.assert_close(token_cosine(padded, mask), token_cosine(tokens))
    torch.testing.assert_close(diameter(padded, mask), diameter(tokens))


def test_the_diameter_of_many_tokens_is_found_across_blocks():
    tokens = torch.zeros(1, 600, 2)
    tokens[0, 3, 0], tokens[0, 590, 0] = -2.0, 5.0
    assert diameter(tokens).item() == 7.0
