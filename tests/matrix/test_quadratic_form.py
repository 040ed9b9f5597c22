"""The quadratic form of SwiGLU without SiLU, in float64 against the module and against forms that are written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnscope.matrix.spectrum import dominance, form_norms, quadratic_form, without_silu

EXACT = 1e-10  # sums of at most 7 x 11 x 7 products of size one in float64: some 1e-13


@pytest.fixture
def weights() -> tuple[Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    gate, up = (torch.randn(11, 7, generator=rng, dtype=torch.float64) for _ in range(2))
    return gate, up, torch.randn(5, 11, generator=rng, dtype=torch.float64)


def test_the_form_gives_what_the_module_gives(weights: tuple[Tensor, Tensor, Tensor]) -> None:
    gate, up, down = weights
    tokens = torch.randn(3, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    by_form = torch.stack([((tokens @ quadratic_form(gate, up, row)) * tokens).sum(-1) for row in down], -1)
    assert (by_form - without_silu(tokens, gate, up, down)).abs().max() < EXACT


def test_norms_without_forms_are_those_of_the_forms(weights: tuple[Tensor, Tensor, Tensor]) -> None:
    gate, up, down = weights
    slow = [sum(row[i] * torch.outer(gate[i], up[i]) for i in range(11)) for row in down]
    assert (form_norms(gate, up, down) - torch.stack([form.norm() for form in slow])).abs().max() < EXACT


def test_one_hidden_unit_that_reads_one_direction_is_one_eigenpair() -> None:
    direction = torch.tensor([[3.0, 4.0, 0.0]], dtype=torch.float64)
    share, vector = dominance(quadratic_form(direction, direction, torch.tensor([2.0], dtype=torch.float64)))
    assert abs(share - 1) < EXACT
    assert abs(abs(float(vector @ direction[0])) - 5) < EXACT


def test_the_identity_has_no_dominant_eigenpair_and_nothing_has_none() -> None:
    assert abs(dominance(torch.eye(4))[0] - 0.5) < EXACT  # 1 / sqrt(width)
    assert dominance(torch.zeros(4, 4))[0] == 0.0
