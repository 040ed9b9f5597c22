"""`gated2026`, small enough to run in every test."""

from __future__ import annotations

from dataclasses import replace

from attnscope.core.experiment import UnsavedSession
from attnscope.papers.experiments.gated2026 import WORDS, gated2026, intervals

TINY = replace(gated2026.presets["quick"], samples=(20, 40), starts=2, iterations=2, tokens=4, width=4, heads=2)

OF_ALL_SEEDS = r"^power_of_n_\w+_(low|high|off)$"


def test_a_curve_for_every_place_of_a_gate() -> None:
    found = gated2026.run(TINY, (0,), UnsavedSession())
    for figure in found.figures:
        assert {row.series for row in figure.rows} == set(WORDS.values())
        assert {row.x for row in figure.rows} == set(TINY.samples)


def test_a_power_is_judged_by_its_interval_over_seeds() -> None:
    """Errors that rise are not flat, one seed says nothing, and a noisy slope is not judged."""
    arrived = {f"loss_over_truth_{kind}": [0.9] for kind in WORDS}

    def verdict(name: str, powers: list[float]) -> str:
        given = {f"power_of_n_{kind}": powers for kind in WORDS}
        (claim,) = (one for one in gated2026.claims if one.name == name)
        return claim.judged({**arrived, **intervals(given)}).verdict

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
