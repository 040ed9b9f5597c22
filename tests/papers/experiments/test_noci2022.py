"""`noci2022`, small enough to run in every test."""

from __future__ import annotations

from dataclasses import replace

from attnscope.core.experiment import UnsavedSession
from attnscope.papers.experiments.noci2022 import noci2022

TINY = replace(noci2022.presets["quick"], width=8, tokens=6, sequences=1, depths=(1, 2, 4))


def test_a_curve_has_a_point_for_every_requested_depth() -> None:
    found = noci2022.run(TINY, (0,), UnsavedSession())
    by_name = {figure.name: figure for figure in found.figures}
    assert {row.x for row in by_name["depth-cosine"].rows} == set(TINY.depths)
    assert len({row.series for row in by_name["alignment"].rows}) == 3
