"""`stopping_collapse`, small enough to run in every test."""

from __future__ import annotations

from dataclasses import replace

from attnscope.core.experiment import UnsavedSession
from attnscope.papers.experiments.stopping_collapse import stopping_collapse

TINY = replace(stopping_collapse.presets["quick"], layers=4, deep=6, width=8, tokens=8, sequences=1, window=1)


def test_curves_have_a_point_for_every_depth_and_bands_hold_their_median() -> None:
    found = stopping_collapse.run(TINY, (0, 1), UnsavedSession())
    for figure in found.figures:
        depth = TINY.layers if figure.name.startswith("remedies") else TINY.deep
        assert {row.x for row in figure.rows} == set(range(depth + 1))
        assert all(row.low <= row.y <= row.high for row in figure.rows)
