"""`doubly_normalised2020`, small enough to run in every test."""

from __future__ import annotations

from dataclasses import replace

from attnscope.core.experiment import UnsavedSession
from attnscope.papers.experiments.doubly_normalised2020 import doubly_normalised2020
from attnscope.papers.trials.trained_alike import Shape, Training

TINY = replace(
    doubly_normalised2020.presets["quick"],
    tokens=8,
    trained=None,
    points=12,
    steps=2,
    shape=Shape(layers=1, width=8, data=(12, 4)),
    training=Training(steps=2, batch=4),
)
NOT_RUN = {"trained_softmax_explains_away"}  # no trained model


def test_every_key_and_every_step_is_drawn() -> None:
    found = doubly_normalised2020.run(TINY, (0,), UnsavedSession())
    by_name = {figure.name: figure for figure in found.figures}
    assert {row.x for row in by_name["masses"].rows} == set(range(1, TINY.tokens + 1))
    assert {row.x for row in by_name["clusters"].rows} == set(range(TINY.steps + 1))
