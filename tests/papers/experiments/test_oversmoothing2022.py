"""`oversmoothing2022`, small enough to run in every test."""

from __future__ import annotations

from dataclasses import replace

from attnscope.core.experiment import UnsavedSession
from attnscope.papers.experiments.oversmoothing2022 import oversmoothing2022
from attnscope.papers.trials.trained_alike import Training

TINY = replace(
    oversmoothing2022.presets["quick"],
    draws=4,
    tokens=6,
    width=8,
    heads=2,
    layers=2,
    sequences=1,
    gains=(0.5, 1.0),
    trained_layers=1,
    trained_width=8,
    data=(12, 4),
    training=Training(steps=2, batch=4),
    model=None,
)
NOT_RUN = {claim.name for claim in oversmoothing2022.claims if claim.name.endswith("model") or "_model_" in claim.name}


def test_every_gain_has_a_curve_and_a_missing_model_has_none() -> None:
    found = oversmoothing2022.run(TINY, (0,), UnsavedSession())
    random, trained, _ = found.figures
    assert len({row.series for row in random.rows}) == len(TINY.gains)
    assert {row.series for row in trained.rows} == {f"encoder, {kind}" for kind in ("plain", "concat", "max", "gate")}
