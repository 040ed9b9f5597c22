"""A page states one limit for a measure: on its card, in its charts and maps, and in the findings about it."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace

import numpy as np
import pytest

from attnscope.commands.scan.diagnose import OF_MEASURES, Thresholds, diagnose
from attnscope.commands.scan.page import render
from attnscope.commands.scan.survey.builder import SurveyBuilder
from attnscope.commands.scan.survey.survey import Survey
from attnscope.commands.timeline.step_curves import LEVEL_RULES, with_level
from attnscope.commands.watch.look import RunHeader
from attnscope.commands.watch.rule import rules
from attnscope.core.measure import measure_cards
from attnscope.core.registry import findings

LIMIT = re.compile(r"<code>(\w+)</code></dt>(?:(?!</dd>).)*?Deserves a look (?:above|below) ([\d.,]+):", re.S)
# Numbers that are past every limit: each finding must state its own.
SICK = {
    "relative_residual": 0.05,
    "token_cosine": 0.99,
    "sink_mass": 0.2,
    "most_received": 0.6,
    "spike": 500.0,
    "entropy": 0.05,
    "self_attention": 0.7,
    "head_overlap": 0.99,
    "max_logit": 150.0,
    "norm_growth": 20.0,
    "head_contribution": 0.001,
    "effective_rank": 1.5,
    "stable_rank": 1.01,
    "contraction": 0.01,
}
CHANGED = {
    name: 0.9 * getattr(Thresholds(), name) if name != "stable_rank" else 1.04 for name in set(OF_MEASURES.values())
}


def sick() -> Survey:
    """Return a survey of three blocks and two heads in which every measure with an alarm is past its limit."""
    cards = measure_cards()
    book = SurveyBuilder({name: cards[name] for name in SICK})
    for name, value in SICK.items():
        card = cards[name]
        site = "self" if "self" in card.sites else "stream"
        for layer in range(3 + (site == "stream")):
            shape = (2, 2) if site == "self" else (2,)
            sizes = np.full(shape, value if name != "spike" or layer else 1.0)
            labels = ("token", "channel") if name == "spike" else ("key",) if name == "most_received" else ()
            labels = ("other",) if name == "head_overlap" else labels
            where = {label: np.ones(shape, dtype=np.int64) for label in labels}
            book.observe(name, card.parts[0], "model", site, layer, sizes, where, np.arange(2))
    stacks = [{"name": "model", "layers": 3, "causal": True, "tokens": 512}]
    return book.survey({"model": {"name": "sick", "stacks": stacks}, "corpus": {"sequences": 2, "tokens": 512}})


def test_every_alarm_on_a_card_is_a_threshold_with_the_same_default() -> None:
    alarms = {name: card.alarm.threshold for name, card in measure_cards().items() if card.alarm is not None}
    for name, threshold in OF_MEASURES.items():
        assert alarms[name] == getattr(Thresholds(), threshold), name
    # Only the finding `alarm` judges the other alarms, by the limit on their card.
    read = {name for kind in findings().values() for name in kind.reads}
    stated = read | {field.name for field in fields(Thresholds)}
    assert not stated & (alarms.keys() - OF_MEASURES.keys()), "name the threshold of this measure in OF_MEASURES"


def test_findings_judge_a_measure_by_its_own_threshold() -> None:
    """Each measure with an alarm is read by a finding that states the threshold of `OF_MEASURES`."""
    stated = {(f.details.get("measure"), f.threshold_name) for f in diagnose(sick())}
    own = {(name, threshold) for name, threshold in OF_MEASURES.items() if name != "sink_mass"}
    assert own <= stated, own - stated
    assert {name for name, _ in stated if name in OF_MEASURES} == set(SICK) - {"sink_mass"}
    assert {name for kind in findings().values() for name in kind.reads} <= measure_cards().keys()


@pytest.mark.parametrize("thresholds", [Thresholds(), replace(Thresholds(), **CHANGED)], ids=["default", "changed"])
def test_a_page_states_one_limit_for_a_measure(thresholds: Thresholds) -> None:
    survey = sick()
    page = render(survey, thresholds=thresholds)
    limits: dict[str, set[float]] = {name: set() for name in SICK}
    for name, limit in LIMIT.findall(page):
        limits[name].add(float(limit.replace(",", "")))
    for map_ in json.loads(re.search(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', page, re.S)[1])[
        "maps"
    ]:
        if map_["alarm"] is not None:
            limits[map_["measure"]].add(map_["alarm"])
    for finding in diagnose(survey, thresholds):
        if finding.threshold_name == OF_MEASURES.get(finding.details.get("measure", "")):
            limits[finding.details["measure"]].add(finding.threshold)
    for name, stated in limits.items():
        assert len({f"{limit:.3g}" for limit in stated}) == 1, f"{name}: the page states {stated}"
        assert min(stated) == pytest.approx(getattr(thresholds, OF_MEASURES[name]), rel=1e-2)


def test_the_page_of_an_older_survey_states_the_limit_in_force() -> None:
    old = sick()
    spike = old.cards["spike"]
    old = replace(old, cards={**old.cards, "spike": replace(spike, alarm=replace(spike.alarm, threshold=1000.0))})
    assert ("spike", "100") in LIMIT.findall(render(old))


@pytest.mark.parametrize("measure", LEVEL_RULES)
def test_the_page_of_a_run_draws_the_level_of_its_alarm(measure: str) -> None:
    card, rule = measure_cards()[measure], LEVEL_RULES[measure]
    assert measure in rules()[rule].reads
    assert {"level": 0.07}.keys() <= rules()[rule].thresholds.keys()
    header = RunHeader("0", "model", "f", (), {measure: card}, settings={"thresholds": {rule: {"level": 0.07}}})
    drawn = with_level(card, header)
    assert drawn.alarm is not None
    assert drawn.alarm.threshold == 0.07
    assert with_level(card, replace(header, settings={})) == card


def test_thresholds_named_for_measures_exist() -> None:
    assert set(OF_MEASURES.values()) <= {field.name for field in fields(Thresholds)}
