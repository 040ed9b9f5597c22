"""`gated2026`, small enough to run in every test; gates against loops, and which experts can be found."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from attnscope.core.experiment import UnsavedSession
from attnscope.papers.experiments.gated2026 import WORDS, gated2026, intervals
from attnscope.papers.trials.gated_experts import KINDS, Experts, algebra, answer, fitted, true_expert

TINY = replace(gated2026.presets["quick"], samples=(20, 40), starts=2, iterations=2, tokens=4, width=4, heads=2)

OF_ALL_SEEDS = r"^power_of_n_\w+_(low|high|off)$"


def test_every_position_of_a_gate_has_a_curve() -> None:
    found = gated2026.run(TINY, (0,), UnsavedSession())
    for figure in found.figures:
        assert {row.series for row in figure.rows} == set(WORDS.values())
        assert {row.x for row in figure.rows} == set(TINY.samples)


def test_a_power_is_judged_by_its_interval_over_seeds() -> None:
    """Rising errors are not flat, one seed is not enough, and a noisy slope is not judged."""
    arrived = {f"loss_over_truth_{kind}": [0.9] for kind in WORDS}

    def verdict(name: str, powers: list[float]) -> str:
        powers_by_kind = {f"power_of_n_{kind}": powers for kind in WORDS}
        (claim,) = (candidate for candidate in gated2026.claims if candidate.name == name)
        return claim.judged({**arrived, **intervals(powers_by_kind)}).verdict

    flat, falls = "gate_on_layer_does_not_help", "gated_output_finds_experts"
    # Student's 97.5% point for 4 seeds is 3.18: four numbers of standard deviation s reach 1.6 s to either side.
    for name, powers, wanted in (
        (flat, [-0.02, 0.0, 0.01, 0.02], "reproduced"),
        (flat, [0.48, 0.5, 0.51, 0.52], "not reproduced"),
        (flat, [-0.5, 0.5, 0.4, -0.4], "not run"),
        (flat, [0.0], "not run"),
        (falls, [-0.3, -0.25, -0.2, -0.25], "reproduced"),
        (falls, [-0.1, 0.1, 0.0, 0.05], "not reproduced"),
        (falls, [-0.3], "not run"),
    ):
        assert verdict(name, powers) == wanted, (name, powers)
    assert intervals({"power_of_n_x": [1.0, 2.0, 3.0], "y": [0.0]}).keys() == {
        f"power_of_n_x_{end}" for end in ("low", "high", "off")
    }


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
