"""`fast2024`, small enough to run in every test."""

from __future__ import annotations

from dataclasses import replace

from attnscope.core.experiment import UnsavedSession
from attnscope.papers.experiments.fast2024 import fast2024
from attnscope.papers.trials.factorised_cost import KINDS
from attnscope.papers.trials.trained_alike import TASKS, Shape, Training

TINY = replace(
    fast2024.presets["quick"],
    exact_tokens=12,
    kernel_tokens=32,
    dim=4,
    lengths=(64, 128),
    needle_lengths=(8, 16),
    shape=Shape(layers=1, width=8, data=(12, 4)),
    training=Training(steps=2, batch=4),
)


def test_every_kind_is_timed_counted_and_trained() -> None:
    found = fast2024.run(TINY, (0,), UnsavedSession())
    by_name = {figure.name: figure for figure in found.figures}
    for name in ("time", "operations", "accuracy", "needle"):
        assert {row.series for row in by_name[name].rows} == set(KINDS)
    assert {row.x for row in by_name["accuracy"].rows} == set(TASKS)
