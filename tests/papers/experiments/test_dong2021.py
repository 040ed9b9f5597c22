"""`dong2021`, small enough to run in every test."""

from __future__ import annotations

from dataclasses import replace

from attnscope.core.experiment import UnsavedSession
from attnscope.papers.experiments.dong2021 import dong2021
from attnscope.papers.trials.path_accuracy import Learned

TOY = Learned(2, 2, 8, (12, 4), steps=2, batch=4, rate=1e-3)
TINY = replace(
    dong2021.presets["quick"],
    sort=TOY,
    hull=TOY,
    memorisation=TOY,
    shapes=(),
    samples=(5, 20),
    chain=(8, 2, 3, 8),
    chain_paths=3,
    chain_samples=1,
    circle_widths=(4, 8),
    circle_points=40,
    circle_steps=2,
    applied=10,
)
NOT_RUN = {"attention_alone_collapses", "mlps_alone_do_not_stop_it", "skips_stop_it", "curves_as_published"}  # no shape


def test_without_a_shape_of_the_paper_its_curves_are_not_drawn() -> None:
    found = dong2021.run(TINY, (0,), UnsavedSession())
    assert {claim.name for claim in dong2021.judged(found) if claim.verdict == "not run"} == NOT_RUN
    assert not [figure for figure in found.figures if figure.name.startswith("A-")]
    assert {figure.name[0] for figure in found.figures} >= {"B", "C", "E"}
