"""Every rule on looks that are made up: it rings where it must, stays quiet where it must, and says where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from attnscope.core.errors import RefusalError
from attnscope.records.timeline import Alarm, Look, Values
from attnscope.watching.judge import Judge
from attnscope.watching.rule import rules

HEADS = np.ones((3, 4))  # layers, heads


def look(step: int, *values: tuple[str, str, np.ndarray], loss: float | None = 2.0) -> Look:
    sites = {"spike": "stream", "relative_residual": "stream"}
    told = tuple(Values.of(name, part, "model", sites.get(name, "self"), numbers) for name, part, numbers in values)
    return Look(step, loss, float(step), step, 0.0, told)


def judged(looks: Sequence[Look], thresholds: dict[str, float] | None = None) -> list[Alarm]:
    judge = Judge(thresholds)
    return [alarm for one in looks for alarm in judge(one)]


def at(place: tuple[int, ...], value: float, before: np.ndarray = HEADS) -> np.ndarray:
    changed = before.copy()
    changed[place] = value
    return changed


STREAM = np.ones(4)
CASES: dict[str, Any] = {
    "max_logit_growth": ([10 * HEADS, at((1, 2), 140.0, 10 * HEADS)], [10 * HEADS, 18 * HEADS], "max_logit", "value"),
    "spike_growth": ([20 * STREAM, at((3,), 500.0, 20 * STREAM)], [20 * STREAM, 45 * STREAM], "spike", "value"),
    "sinks_forming": ([0.1 * HEADS, at((0, 1), 0.6, 0.1 * HEADS)], [0.5 * HEADS, 0.6 * HEADS], "sink_mass", "value"),
    "layers_collapsing": (
        [0.8 * STREAM, at((2,), 0.015, 0.8 * STREAM)],
        [0.8 * STREAM, 0.05 * STREAM],
        "relative_residual",
        "value",
    ),
    "inactive_heads_appear": (
        [HEADS, at((2, 0), 0.01)],
        [at((2, 0), 0.01), at((2, 0), 0.009)],
        "inactive_heads",
        "value",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_rings_where_it_must_and_only_there(name: str) -> None:
    rings, quiet, measure, part = CASES[name]
    (alarm,) = judged([look(50 * (n + 1), (measure, part, numbers)) for n, numbers in enumerate(rings)])
    changed = np.argwhere(rings[0] != rings[1])[0]
    assert (alarm.rule, alarm.step, alarm.since, alarm.ended) == (name, 100, 100, False)
    assert alarm.layers == (changed[0],)
    assert alarm.heads == ((tuple(changed),) if len(changed) == 2 else ())
    assert f"layer {changed[0]}" in alarm.sentence
    assert alarm.sentence.endswith("since step 100; the loss is still normal.")
    assert alarm.advice
    assert alarm.citation
    assert not judged([look(50 * (n + 1), (measure, part, numbers)) for n, numbers in enumerate(quiet)])


def test_heads_that_come_to_rest_are_a_note_however_many() -> None:
    (alarm,) = judged([look(50 * n, ("sink_mass", "value", size * HEADS)) for n, size in ((1, 0.1), (2, 0.9))])
    assert (alarm.rule, alarm.severity, len(alarm.heads)) == ("sinks_forming", "info", 12)


def test_entropy_collapse_needs_most_heads_of_a_layer() -> None:
    begun = 2 * HEADS
    one, most = begun.copy(), begun.copy()
    one[1, 0], most[1, :3] = 0.01, 0.01
    assert not judged([look(50, ("entropy", "value", begun)), look(100, ("entropy", "value", one))])
    (alarm,) = judged([look(50, ("entropy", "value", begun)), look(100, ("entropy", "value", most), loss=3.0)])
    assert alarm.heads == ((1, 0), (1, 1), (1, 2))
    assert "in layer 1, heads 0, 1 and 2, since step 100; the loss is 50% above its lowest." in alarm.sentence


def test_gradients_that_vanish_at_two_looks_in_a_row() -> None:
    def looks(*ratios: float) -> list[Look]:
        ones = np.ones(3)
        return [
            look(
                10 * n,
                ("gradient_norm", "query", at((2,), ratio / 2, ones)),
                ("gradient_norm", "key", at((2,), ratio / 2, ones)),
                ("gradient_norm", "value", ones),
            )
            for n, ratio in enumerate(ratios, start=1)
        ]

    (alarm,) = judged(looks(0.5, 1e-5, 1e-5))
    assert (alarm.rule, alarm.step, alarm.layers) == ("vanishing_gradients", 30, (2,))
    assert not judged(looks(0.5, 1e-5, 0.4))


def test_what_is_no_number_is_critical_and_an_empty_place_is_not() -> None:
    ragged = at((2, 3), np.nan)
    assert not judged([look(1, ("entropy", "value", ragged)), look(2, ("entropy", "value", ragged))])
    (alarm,) = judged(
        [look(1, ("entropy", "value", ragged)), look(2, ("entropy", "value", at((1, 0), np.nan, ragged)))]
    )
    assert (alarm.rule, alarm.severity, alarm.layers) == ("nonfinite", "critical", (1,))
    assert judged([look(1), look(2, loss=float("nan"))])[0].severity == "critical"


def test_an_alarm_ends_after_two_quiet_looks_and_a_worse_one_begins_anew() -> None:
    looks = [
        look(10 * n, ("max_logit", "value", size * HEADS)) for n, size in enumerate((10, 150, 90, 90, 90), start=1)
    ]
    begun, ended = judged(looks, {"max_logit_growth.growth": 1e9})
    assert (begun.step, ended.step, ended.ended) == (20, 40, True)
    assert begun.key == ended.key
    fall = [look(10 * n, ("entropy", "value", size * HEADS)) for n, size in enumerate((2.0, 0.8, 0.01), start=1)]
    said = judged(fall)
    assert [(one.severity, one.ended) for one in said] == [("warning", False), ("warning", True), ("critical", False)]


def test_thresholds_are_visible_and_can_be_changed() -> None:
    grown = [look(50 * n, ("max_logit", "value", size * HEADS)) for n, size in enumerate((20, 25), start=1)]
    assert not judged(grown)
    assert judged(grown, {"max_logit_growth.level": 22})[0].threshold == 22
    with pytest.raises(RefusalError, match=r"no threshold called 'max_logit_growth\.levels'"):
        Judge({"max_logit_growth.levels": 3})
    with pytest.raises(RefusalError, match="cannot be -1"):
        Judge({"max_logit_growth.level": -1})
    for name, rule in rules().items():
        assert rule.name == name
        assert rule.thresholds
        assert rule.citation
        assert rule.advice.endswith(".")
