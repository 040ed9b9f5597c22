"""`gated2026`, small enough to run in every test."""

from __future__ import annotations

from dataclasses import replace

from attnscope.core.experiment import Bare
from attnscope.experiments.gated2026 import WORDS, gated2026

TINY = replace(gated2026.presets["quick"], samples=(20, 40), starts=2, iterations=2, tokens=4, width=4, heads=2)


def test_a_curve_for_every_place_of_a_gate() -> None:
    found = gated2026.run(TINY, (0,), Bare())
    for figure in found.figures:
        assert {row.series for row in figure.rows} == set(WORDS.values())
        assert {row.x for row in figure.rows} == set(TINY.samples)
