"""Conclusions of a treatment: intervals equal a slow computation, and outcomes follow from planted findings."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from attnscope.commands.compare.chance import without_heads
from attnscope.commands.compare.paired_findings import status, trend
from attnscope.commands.treat.outcome_words import KINDS, title_of
from attnscope.commands.treat.outcomes import Outcome, outcomes_of
from attnscope.commands.treat.record import Treatment
from attnscope.core.decoding import FieldError
from attnscope.core.finding import SEVERITIES, Finding, Severity
from attnscope.core.registry import findings
from attnscope.stats.intervals import paired_interval
from tests.commands.sample_treatment import sample_pruning, sample_treatment

NUMBERS = st.floats(-10, 10)


def found(kind: str = "sink", heads: int = 10, severity: Severity = "note", value: float = 0.5) -> Finding:
    return Finding(
        kind=kind,
        severity=severity,
        stack="decoder",
        layers=(0,),
        heads=tuple((0, head) for head in range(heads)),
        sentence=f"{heads} heads.",
        value=value,
        threshold=0.3,
        threshold_name="sink_mass",
        citation="arXiv:2410.10781",
        advice="None.",
        details={"measure": "sink_mass", "site": "self"},
    )


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=3, max_size=20))
def test_the_interval_is_students(pairs: list[tuple[float, float]]) -> None:
    before, after = zip(*pairs, strict=True)
    told = paired_interval(before, after)
    apart = np.array(after) - np.array(before)
    assert told.mean == pytest.approx(apart.mean(), abs=1e-12)
    if apart.std() > 1e-9:  # scipy divides by the spread
        low, high = stats.ttest_rel(after, before).confidence_interval(0.95)
        assert [told.low, told.high] == pytest.approx([low, high], abs=1e-9)


def test_the_interval_holds_the_mean_in_95_of_100_draws() -> None:
    draw = np.random.default_rng(0)
    held = 0
    for _ in range(2000):
        before = draw.normal(size=12)
        told = paired_interval(tuple(before), tuple(before + draw.normal(0.3, 1.0, size=12)))
        held += told.low <= 0.3 <= told.high
    # The number held is binomial: 1900 with a standard deviation of sqrt(2000 * .95 * .05) = 9.7; five of them.
    assert abs(held - 1900) < 50


def test_sequences_of_one_text_count_as_one_draw() -> None:
    """Differences are similar within a text: an interval over sequences would contain the mean far too rarely."""
    draw = np.random.default_rng(0)
    texts = tuple(np.repeat(np.arange(8), 4).tolist())
    held = naive = 0
    for _ in range(1000):
        apart = 0.3 + np.repeat(draw.normal(size=8), 4) + 0.2 * draw.normal(size=32)
        told = paired_interval((0.0,) * 32, tuple(apart), texts)
        held += told.low <= 0.3 <= told.high
        alone = paired_interval((0.0,) * 32, tuple(apart))
        naive += alone.low <= 0.3 <= alone.high
    # Binomial around 950 with a standard deviation of sqrt(1000 * .95 * .05) = 6.9; five of them.
    assert abs(held - 950) < 35
    assert naive < 800
    assert (told.n, told.texts) == (32, 8)


def test_texts_of_one_sequence_each_give_students_interval() -> None:
    before, after = (1.0, 2.0, 4.0, 3.0), (1.5, 1.0, 4.5, 3.25)
    told, alone = paired_interval(before, after, (7, 3, 5, 1)), paired_interval(before, after)
    assert [told.low, told.high] == pytest.approx([alone.low, alone.high], abs=1e-14)


def test_one_pair_gives_an_infinite_interval() -> None:
    told = paired_interval((1.0,), (2.0,))
    assert (told.mean, told.low, told.high) == (1.0, -math.inf, math.inf)
    assert not told.sure


def only(found_in: dict[str, list[Finding]], baseline: str = "control") -> Outcome:
    outcomes = outcomes_of(found_in, baseline, ("sink",))
    assert len(outcomes) == 1
    return outcomes[0]


@pytest.mark.parametrize(
    ("control", "treated", "judgement"),
    [
        (found(heads=40), found(heads=20), "helped"),
        (found(heads=20), found(heads=40), "harmed"),
        (found(heads=40), found(heads=39), "no effect"),  # one of forty
        (found(heads=2), found(heads=1), "helped"),
        (found(), None, "helped"),
        (None, found(), "harmed"),
        (found(), found(), "no effect"),
        (found(severity="to_know"), found(severity="note"), "helped"),
        (found(value=0.9), found(value=0.5), "helped"),  # the number came closer to its threshold
        (found(value=0.5), found(value=0.9), "harmed"),
        (found(value=0.50), found(value=0.52), "no effect"),
        (found(heads=20, severity="to_know"), found(heads=18, severity="wrong"), "harmed"),  # severity goes first
        (found(heads=20, severity="wrong"), found(heads=40, severity="to_know"), "helped"),
        (found(heads=20, value=0.9), found(heads=21, value=3.0), "harmed"),  # one of twenty hides no number
        (found(heads=20, value=0.9), found(heads=15, value=3.0), "helped"),
    ],
)
def test_outcomes_are_judged_against_the_control(
    control: Finding | None, treated: Finding | None, judgement: str
) -> None:
    arms = {name: [] if one is None else [one] for name, one in (("control", control), ("treated", treated))}
    outcome = only({"before": [found(heads=40)], **arms})
    assert outcome.judgement == judgement
    assert outcome.answered


@given(*(st.tuples(st.integers(1, 40), st.sampled_from(SEVERITIES), st.floats(0.31, 5.0)) for _ in range(2)))
def test_helped_and_harmed_are_the_trend_of_a_pair(
    one: tuple[int, Severity, float], other: tuple[int, Severity, float]
) -> None:
    """A remedy may be for a finding that is not wrong, so its judgement follows the trend of every severity. Only a
    count that moved by less than a tenth is ignored. What a comparison calls worse or better is harmed or helped."""
    control, treated = (found("sink", heads, severity, value) for heads, severity, value in (one, other))
    judgement = only({"before": [], "control": [control], "treated": [treated]}).judgement
    small = 0 < abs(other[0] - one[0]) < max(1.0, 0.1 * one[0]) and one[1] == other[1]
    words = {"worse": "harmed", "better": "helped", "same": "no effect", "changed": "no effect"}
    assert small or judgement == words[trend(control, treated)]
    told = status(control, treated)
    assert told in ("same", "changed") or judgement == words[told]
    assert (told in ("worse", "better")) == ((one[1] == "wrong") != (other[1] == "wrong"))


def test_every_kind_has_words_for_what_is_counted() -> None:
    assert set(KINDS) == set(findings()) - {"alarm"}
    assert title_of(only({"before": [], "control": [found("alarm")], "treated": []})) == "Alarm of sink mass"


def test_what_training_alone_did_is_not_counted_for_the_remedy() -> None:
    outcome = only({"before": [found(heads=40)], "control": [found(heads=10)], "treated": [found(heads=10)]})
    assert outcome.judgement == "no effect"
    gone = only({"before": [found()], "control": [], "treated": []})
    assert (gone.judgement, gone.before, gone.control, gone.treated) == ("no effect", found(), None, None)


def test_findings_of_heads_that_are_out_are_gone() -> None:
    left = without_heads([found(heads=3)], {(0, 0), (0, 1)})
    assert [one.heads for one in left] == [((0, 2),)]
    assert without_heads([found(heads=2)], {(0, 0), (0, 1)}) == ()


def test_the_loss_is_against_the_control_and_without_one_against_before() -> None:
    trained, pruned = sample_treatment(), sample_pruning()
    assert trained.loss.mean == pytest.approx(-0.05 + 0.015)
    assert trained.loss_between("before", "control").mean == pytest.approx(-0.1)
    assert pruned.baseline == "before"
    assert pruned.removed == ((0, 0), (1, 1))
    timed = {name: replace(arm, quartiles=(0.09, 0.13)) for name, arm in trained.arms.items()}
    assert replace(trained, arms=timed).slowdown == pytest.approx(1.2)
    assert math.isnan(trained.slowdown)  # too few steps were timed
    assert math.isnan(pruned.slowdown)


def test_what_does_not_fit_together_is_refused() -> None:
    document = sample_treatment().document()
    changes: tuple[dict[str, Any], ...] = (
        {"arms": {name: arm for name, arm in document["arms"].items() if name != "before"}},
        {"training": None},
        {"surveys": {}},
        {"surveys": {**document["surveys"], "more": document["surveys"]["before"]}},
        {"by_text": {"before": document["by_text"]["before"]}},
        {"by_text": {**document["by_text"], "treated": [[["sink_mass"], [1.0]]]}},
        {"by_text": {**document["by_text"], "treated": [[document["by_text"]["treated"][0][0], ["a"]]]}},
        {"by_text": 3},
    )
    for change in changes:
        with pytest.raises(FieldError):
            Treatment.from_json({**document, **change})
    shorter = replace(sample_treatment().arms["before"], losses=(1.0,))
    arms = {**sample_treatment().arms, "before": shorter}
    with pytest.raises(FieldError, match="same sequences"):
        Treatment.from_json(replace(sample_treatment(), arms=arms).document())
