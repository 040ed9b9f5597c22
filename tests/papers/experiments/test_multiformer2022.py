"""`multiformer2022`, small enough to run in every test."""

from __future__ import annotations

from dataclasses import replace

from attnscope.core.experiment import UnsavedSession
from attnscope.papers.experiments.multiformer2022 import ARCHITECTURES, multiformer2022
from attnscope.papers.trials.trained_alike import Training

TINY = replace(
    multiformer2022.presets["quick"],
    exact_tokens=13,
    segments=3,
    held=3,
    layers=1,
    width=16,
    data=(12, 4),
    training=Training(steps=2, batch=4),
)


def test_every_architecture_and_every_head_is_drawn() -> None:
    found = multiformer2022.run(TINY, (0,), UnsavedSession())
    accuracy, contributions = found.figures
    assert {row.x for row in accuracy.rows} == set(ARCHITECTURES)
    assert len(contributions.rows) == TINY.heads * TINY.layers
