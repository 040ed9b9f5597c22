"""Laws of growth told apart: each is the likeliest of numbers that follow it, with noise as widths have it."""

from __future__ import annotations

import numpy as np
import pytest

from attnscope.papers.experiments.likhosherstov2021 import likhosherstov2021
from attnscope.papers.trials.curves import FLOOR, advantage_of_logarithm, squared_errors

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
    """With errors of 4%, fewer than the widths of small patterns have, both verdicts come out."""
    claim = next(one for one in likhosherstov2021.claims if one.name == "logarithmic_in_n")
    rng = np.random.default_rng(0)
    verdicts: list[str] = []
    for _ in range(5):
        noisy = list(TRUE[law](np.array(SIZES)) * np.exp(0.04 * rng.standard_normal(len(SIZES))))
        nats = advantage_of_logarithm(SIZES, noisy)
        verdicts.append(claim.judged({f"nats_of_logarithm_over_{name}": [v] for name, v in nats.items()}).verdict)
    assert verdicts.count(verdict) >= 4, verdicts
