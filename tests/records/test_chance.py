"""What chance may do to a finding, against drawing again; and that a verdict listens to it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from attnscope.core.finding import Finding
from attnscope.records.chance import Reading
from attnscope.records.outcomes import Outcome, outcomes_of
from attnscope.records.survey.cell import Cell
from attnscope.records.survey.survey import Survey
from attnscope.stats.moments import Moments
from tests.records.survey.sample import sample_survey

BAR = 0.3


def survey_of(means: list[float], spread: float, n: int = 16) -> Survey:
    """One block of heads whose sink mass has these means and this spread over n sequences."""
    whole = sample_survey(1, n, 2, seed=0)
    signs = np.where(np.arange(n) % 2, 1.0, -1.0)
    values = np.array(means)[None, :] + spread * signs[:, None]
    key, cell = next((key, cell) for key, cell in whole.cells.items() if key[:2] == ("sink_mass", "value"))
    made: Cell = replace(cell, moments=Moments.of(values))
    return replace(whole, cells={key: made})


def sinks(survey: Survey, means: list[float]) -> Finding | None:
    heads = tuple((0, head) for head, mean in enumerate(means) if mean > BAR)
    key = next(iter(survey.cells))
    if not heads:
        return None
    return Finding(
        kind="sink",
        severity="info",
        stack=key.stack,
        layers=(0,),
        heads=heads,
        sentence="Sinks.",
        value=max(means),
        threshold=BAR,
        threshold_name="sink_mass",
        citation="arXiv:2410.10781",
        advice="None.",
        details={"measure": "sink_mass", "site": key.site},
    )


def outcome(control: list[float], treated: list[float], spread: float) -> Outcome:
    surveys = {"control": survey_of(control, spread), "treated": survey_of(treated, spread)}
    found = {name: [] for name in ("before", "control", "treated")}  # type: ignore[var-annotated]
    for name, means in (("control", control), ("treated", treated)):
        one = sinks(surveys[name], means)
        found[name] = [] if one is None else [one]
    readings = {name: Reading(one, 16) for name, one in surveys.items()}
    return outcomes_of(found, "control", ("sink",), readings)[0]


def test_the_variance_of_a_count_is_that_of_drawing_again() -> None:
    means = [0.1, 0.28, 0.3, 0.31, 0.5, 0.9]
    survey = survey_of(means, 0.2)
    finding = sinks(survey, means)
    assert finding is not None
    draw = np.random.default_rng(0)
    error = survey_of(means, 0.2).cells[next(iter(survey.cells))].moments.std / math.sqrt(16)
    counts = (np.array(means) + error * draw.normal(size=(20_000, len(means))) > BAR).sum(axis=1)
    # The variance of 20,000 counts is known to sqrt(2 / 20,000) = 1% of itself; five of them.
    assert Reading(survey, 16).variance_of_count(finding) == pytest.approx(float(counts.var()), rel=0.05)
    assert Reading().variance_of_count(finding) == 0.0
    assert Reading(survey, 16).explains(finding)


def test_heads_that_moved_across_the_bar_by_chance_are_no_effect() -> None:
    near = outcome([0.31, 0.31, 0.32, 0.31], [0.29, 0.29, 0.31, 0.31], 0.3)
    assert near.judgement == "no effect"
    assert near.chance > 2
    far = outcome([0.6, 0.7, 0.6, 0.8], [0.1, 0.1, 0.7, 0.1], 0.02)
    assert far.judgement == "helped"
    assert far.chance < 1e-6
    assert outcome([0.1, 0.1, 0.7, 0.1], [0.6, 0.7, 0.6, 0.8], 0.02).judgement == "harmed"


def test_a_finding_that_is_gone_by_a_hair_is_no_effect() -> None:
    assert outcome([0.305, 0.1], [0.295, 0.1], 0.2).judgement == "no effect"
    assert outcome([0.9, 0.1], [0.1, 0.1], 0.2).judgement == "helped"
