"""`likhosherstov2021`, small enough to run in every test; its laws of growth and its fixed module."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from attnscope.constructions.random_projection import random_projection
from attnscope.core.experiment import UnsavedSession
from attnscope.heads.accuracy import Accuracy
from attnscope.heads.generate import generate
from attnscope.heads.rounding import certified
from attnscope.papers.experiments.likhosherstov2021 import FixedModule, fixed_module, likhosherstov2021, serves
from attnscope.papers.trials.curves import FLOOR, advantage_of_logarithm, squared_errors

TINY = replace(
    likhosherstov2021.presets["quick"],
    sizes=(8, 16, 32),
    counts=(1, 2),
    count_n=8,
    draws=2,
    halvings=1,
    theorem_draws=2,
    many=2,
    many_n=16,
    many_k=2,
    many_width=32,
    narrow_width=2,
)
OF_ALL_SEEDS = "^nats_of_logarithm_over_"


def test_the_width_of_the_theorem_is_the_dashed_line() -> None:
    found = likhosherstov2021.run(TINY, (0,), UnsavedSession())
    for figure, places in zip(found.figures, (TINY.sizes, TINY.counts), strict=True):
        dashed = [row for row in figure.rows if row.dashed]
        assert [row.x for row in dashed] == list(places)
        assert {row.series for row in dashed} == {"the theorem's width"}


SIZES = [float(n) for n in (16, 32, 64, 128, 256, 512) for _ in range(4)]
TRUE = {
    "logarithm": lambda n: -62_000 + 44_000 * np.log(n),
    "cube_root": lambda n: 10_000 + 20_000 * np.cbrt(n),
    "root": lambda n: 20_000 + 8_000 * np.sqrt(n),
    "power": lambda n: 3_000 * n**0.4,
}


@pytest.mark.parametrize("law", TRUE)
def test_numbers_on_a_law_are_fitted_by_it_exactly_and_by_no_other(law: str) -> None:
    errors = squared_errors(SIZES, list(TRUE[law](np.array(SIZES))))
    assert errors[law] < FLOOR
    assert all(error > 1e-6 for other, error in errors.items() if other != law)


@pytest.mark.parametrize(("law", "verdict"), [("logarithm", "reproduced"), ("cube_root", "contradicted")])
def test_the_claim_can_be_reproduced_and_contradicted(law: str, verdict: str) -> None:
    """Both verdicts are reached with errors of 4%, less than those of widths of small patterns."""
    claim = next(one for one in likhosherstov2021.claims if one.name == "logarithmic_in_n")
    rng = np.random.default_rng(0)
    verdicts: list[str] = []
    for _ in range(5):
        noisy = list(TRUE[law](np.array(SIZES)) * np.exp(0.04 * rng.standard_normal(len(SIZES))))
        nats = advantage_of_logarithm(SIZES, noisy)
        verdicts.append(claim.judged({f"nats_of_logarithm_over_{name}": [v] for name, v in nats.items()}).verdict)
    assert verdicts.count(verdict) >= 4, verdicts


def test_a_module_serves_patterns_it_has_not_seen_and_a_singular_one_does_not() -> None:
    accuracy, module = Accuracy(), fixed_module(48, np.random.default_rng(0))
    singular = FixedModule(module.query, module.query, module.inverse)  # W_K = W_Q: logits are symmetric
    for seed in range(3):
        pattern = generate("union_of_permutations", 32, 2, seed=seed)
        head, found = certified(
            random_projection(pattern, 48, accuracy, np.random.default_rng(seed)), pattern, accuracy, "draw"
        )
        assert found.reached
        assert serves(module, head, pattern, accuracy)
        assert not serves(singular, head, pattern, accuracy)


def test_the_input_gives_back_queries_and_keys() -> None:
    module = fixed_module(5, np.random.default_rng(1))
    both = torch.randn(7, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    stream = both @ module.inverse
    weights = torch.cat([module.query, module.key], dim=1).double()
    torch.testing.assert_close(stream @ weights, both)
