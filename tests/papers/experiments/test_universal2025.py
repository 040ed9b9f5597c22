"""`universal2025`, small enough to run in every test."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attnscope.core.experiment import UnsavedSession
from attnscope.papers.experiments.universal2025 import universal2025
from attnscope.papers.trials import clipped_networks

TINY = replace(
    universal2025.presets["quick"],
    steps=(10, 40),
    points=501,
    wave_steps=(8, 32),
    knots=9,
    widths=(2, 6, 1),
    place_steps=(8, 32),
    digit_widths=(8,),
    digit_steps=(4,),
    heads=(1, 2),
    anchors=4,
    training=20,
)


def test_errors_of_one_head_are_those_measured_before() -> None:
    """The reference errors were measured on another grid; ours are at most the bound and at most 2% smaller."""
    for steps, before in ((10, 0.4994), (40, 0.1247), (160, 0.0312)):
        found = clipped_networks.clipping_error(steps, 1e4, 1001)
        assert 0.98 * before <= found["error"] <= found["bound"]


def test_a_soft_head_is_worst_at_its_end() -> None:
    """Sum k e^(-k^2) / sum e^(-k^2) over k >= 0 is .29205 steps: anchors beyond the end are missing, which shifts the
    mean.
    """
    found = clipped_networks.clipping_error(40, 4.0, 1001)
    assert abs(found["error"] / 0.25 - 0.29205) < 1e-4
    assert found["inside"] < 0.01 * found["error"]


def test_without_the_extra_digits_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnscope.papers.trials.clipped_networks.digits_at_hand", lambda: False)
    found = universal2025.run(TINY, (0,), UnsavedSession())
    verdicts = {claim.name: claim.verdict for claim in universal2025.judged(found)}
    assert verdicts["a_classifier_of_digits"] == "not run"
    assert "attnscope[convex]" in found.remarks[-1]
