"""`mind_the_gap2024`, small enough to run in every test."""

from __future__ import annotations

from dataclasses import replace

from attnscope.core.experiment import UnsavedSession
from attnscope.papers.experiments.mind_the_gap2024 import mind_the_gap2024

TINY = replace(mind_the_gap2024.presets["quick"], sizes=(8, 64), draws_times_tokens=64)
NOT_RUN = {"collapse_of_1024_tokens_in_numbers", "without_mean_rank_of_1024_tokens_in_numbers"}  # no such size


def test_laws_stand_beside_every_measured_curve() -> None:
    found = mind_the_gap2024.run(TINY, (0,), UnsavedSession())
    for figure in found.figures[:2]:
        for dashed in (False, True):
            assert {row.x for row in figure.rows if row.dashed is dashed} == set(TINY.sizes)
    assert "value weights" in found.remarks[1]
