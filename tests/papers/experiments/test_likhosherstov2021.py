"""`likhosherstov2021`, small enough to run in every test."""

from __future__ import annotations

from dataclasses import replace

from attnscope.core.experiment import UnsavedSession
from attnscope.papers.experiments.likhosherstov2021 import likhosherstov2021

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
