"""Experts inside attention: every place of a gate against loops, what cannot be told apart, and what can."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnscope.papers.trials.gated_experts import KINDS, Experts, algebra, answer, fitted, true_expert


def drawn(heads: int = 2) -> tuple[Experts, Tensor]:
    rng = torch.Generator().manual_seed(0)
    some = [true_expert(rng) for _ in range(heads)]
    experts = {name: torch.cat([one[name] for one in some]) for name in some[0]}
    return experts, torch.randn(6, 4, 3, generator=rng, dtype=torch.float64)


@pytest.mark.parametrize("kind", KINDS)
def test_by_loops(kind: str) -> None:
    experts, tokens = drawn()
    for sample, found in zip(tokens, answer(kind, experts, tokens), strict=True):
        total = torch.zeros((), dtype=torch.float64)
        for logits, value, gate in zip(*experts.values(), strict=True):
            open_at = [(token @ gate).sigmoid() for token in sample]
            keys = [token * g if kind == "key" else token for token, g in zip(sample, open_at, strict=True)]
            weights = torch.stack([sample[0] @ logits @ key for key in keys]).softmax(0)
            parts = [token @ value * (g if kind == "value" else 1) for token, g in zip(sample, open_at, strict=True)]
            mixed = sum(w * part for w, part in zip(weights, parts, strict=True))
            mixed = mixed * {"output": open_at[0], "self": torch.as_tensor(mixed).sigmoid()}.get(kind, 1)
            total = total + mixed / 2
        if kind == "layer":
            total = total * (sample[0] @ experts["gate"][0]).sigmoid()
        torch.testing.assert_close(found, total)


@pytest.mark.parametrize("kind", KINDS)
def test_a_split_expert_is_seen_only_where_it_is_not_linear(kind: str) -> None:
    one, tokens = drawn(1)
    two = {name: value.repeat(2, *[1] * (value.ndim - 1)) for name, value in one.items()}
    two["value"] = two["value"] + torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    apart = float((answer(kind, two, tokens) - answer(kind, one, tokens)).abs().max())
    assert apart > 0.01 if kind == "self" else apart < 1e-14


def test_the_triple_sum_and_a_gate_of_one_are_the_module() -> None:
    """Sums of some hundred terms of size 1 in float64: below 1e-13."""
    found = algebra(6, 8, 2, 0)
    assert found["triple_sum"] < 1e-13
    assert found["gate_of_one"] < 1e-13


def test_least_squares_reaches_the_noise() -> None:
    found = fitted("self", 200, 0, starts=1, iterations=60, noise=0.1)
    assert found["loss_over_noise"] < 1.3
    assert found["mean_error"] < 0.2
