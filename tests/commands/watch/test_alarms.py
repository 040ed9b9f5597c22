"""Every alarm rule on synthetic looks: it fires at the planted places and nowhere else, and names them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from attnscope.commands.watch.alarm_judge import AlarmJudge
from attnscope.commands.watch.look import Alarm, Look
from attnscope.commands.watch.rule import rules
from attnscope.commands.watch.values import Values
from attnscope.core.errors import RefusalError

HEADS = np.ones((3, 4))  # layers, heads


def look(step: int, *values: tuple[str, str, np.ndarray], loss: float | None = 2.0) -> Look:
    sites = {"spike": "stream", "relative_residual": "stream"}
    told = tuple(Values.of(name, part, "model", sites.get(name, "self"), numbers) for name, part, numbers in values)
    return Look(step, loss, float(step), step, 0.0, told)


def judged(looks: Sequence[Look], thresholds: dict[str, float] | None = None) -> list[Alarm]:
    judge = AlarmJudge(thresholds)
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
    "inactive_heads_appear, after the output projection": (
        [HEADS / 4, at((2, 0), 0.004, HEADS / 4)],
        [HEADS / 4, at((2, 0), 0.006, HEADS / 4)],  # 0.024 of the mean of four
        "head_contribution",
        "value",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_rules_fire_at_planted_places_only(name: str) -> None:
    rings, quiet, measure, part = CASES[name]
    (alarm,) = judged([look(50 * (n + 1), (measure, part, numbers)) for n, numbers in enumerate(rings)])
    changed = np.argwhere(rings[0] != rings[1])[0]
    assert (alarm.rule, alarm.step, alarm.since, alarm.ended) == (name.split(",", maxsplit=1)[0], 100, 100, False)
    assert alarm.layers == (changed[0],)
    assert alarm.heads == ((tuple(changed),) if len(changed) == 2 else ())
    place = "after the last block" if measure == "spike" else f"block {changed[0]}"
    assert place in alarm.sentence
    assert alarm.sentence.endswith("since step 100; the loss was normal then.")
    assert alarm.advice
    assert alarm.citation
    assert not judged([look(50 * (n + 1), (measure, part, numbers)) for n, numbers in enumerate(quiet)])


def test_heads_that_become_sinks_are_a_note_however_many() -> None:
    (alarm,) = judged([look(50 * n, ("sink_mass", "value", size * HEADS)) for n, size in ((1, 0.1), (2, 0.9))])
    assert (alarm.rule, alarm.severity, len(alarm.heads)) == ("sinks_forming", "note", 12)


def test_entropy_collapse_needs_most_heads_of_a_layer() -> None:
    begun = 2 * HEADS
    one, most = begun.copy(), begun.copy()
    one[1, 0], most[1, :3] = 0.01, 0.01
    assert not judged([look(50, ("entropy", "value", begun)), look(100, ("entropy", "value", one))])
    (alarm,) = judged([look(50, ("entropy", "value", begun)), look(100, ("entropy", "value", most), loss=3.0)])
    assert alarm.heads == ((1, 0), (1, 1), (1, 2))
    assert "in block 1, heads 0, 1 and 2, since step 100; the loss was 50% above its lowest." in alarm.sentence


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


def test_nan_is_critical_and_a_missing_place_is_not() -> None:
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
    grown = [look(50 * n, ("max_logit", "value", size * HEADS)) for n, size in enumerate((15, 25), start=1)]
    assert not judged(grown)
    assert judged(grown, {"max_logit_growth.level": 22})[0].threshold == 22
    with pytest.raises(RefusalError, match=r"no threshold called 'max_logit_growth\.levels'"):
        AlarmJudge({"max_logit_growth.levels": 3})
    with pytest.raises(RefusalError, match="cannot be -1"):
        AlarmJudge({"max_logit_growth.level": -1})
    for name, rule in rules().items():
        assert rule.name == name
        assert rule.thresholds
        assert rule.citation
        assert rule.advice.endswith(".")


def test_damage_by_the_first_update_is_seen_against_the_initial_look() -> None:
    said = judged([look(step, ("entropy", "value", size * HEADS)) for step, size in ((0, 2.5), (1, 0.04), (20, 0.04))])
    assert [(one.rule, one.severity, one.since) for one in said] == [("entropy_collapse", "critical", 1)]


def test_large_logits_that_a_model_came_with_are_no_alarm_until_they_rise() -> None:
    def said(*sizes: float) -> list[str]:
        return [one.rule for one in judged([look(n, ("max_logit", "value", s * HEADS)) for n, s in enumerate(sizes)])]

    assert not said(290, 319, 304, 420)
    assert said(290, 319, 304, 440) == ["max_logit_growth"]


def test_a_layer_of_mostly_dead_heads_is_a_warning_and_a_head_or_two_are_a_note() -> None:
    for heads, severity in ((1, "note"), (2, "note"), (3, "warning"), (4, "warning")):
        dead = HEADS.copy()
        dead[1, :heads] = 0.0
        (alarm,) = judged([look(n, ("inactive_heads", "value", one)) for n, one in enumerate((HEADS, dead))])
        assert (alarm.rule, alarm.severity, len(alarm.heads)) == ("inactive_heads_appear", severity, heads)


def test_looks_that_are_rarer_than_the_window_are_compared_with_the_one_before() -> None:
    (fell,) = judged([look(150 * n, ("entropy", "value", size * HEADS)) for n, size in enumerate((2.5, 2.4, 1.0))])
    assert (fell.rule, fell.step, round(fell.value, 3)) == ("entropy_collapse", 300, 0.583)
    assert "fell by 58% within 150 steps" in fell.sentence
    (grew,) = judged([look(149 * n, ("max_logit", "value", size * HEADS)) for n, size in enumerate((0.5, 40.0))])
    assert "Logits grew 80 times within 149 steps, to 40," in grew.sentence
    assert grew.value == 80
    (from_below,) = judged([look(5 * n, ("max_logit", "value", size * HEADS)) for n, size in enumerate((-0.5, 40.0))])
    assert "Logits grew from -0.5 within 5 steps, to 40," in from_below.sentence
    (spike,) = judged([look(300 * n, ("spike", "value", size * STREAM)) for n, size in enumerate((50.0, 200.0))])
    assert "grew 4 times within 300 steps, to 200," in spike.sentence


def test_an_alarm_that_holds_is_renewed_by_new_layers_more_heads_and_another_threshold() -> None:
    def grown(*places: tuple[int, int], size: float = 40.0) -> np.ndarray:
        changed = 15 * HEADS
        for place in places:
            changed[place] = size
        return changed

    tables = [
        15 * HEADS,
        grown((1, 0)),
        grown((1, 0)),  # nothing new
        grown((1, 0), (2, 1)),  # a layer
        grown((1, 0), (2, 1)),
        grown((1, 0), (1, 1), (2, 1)),  # one more head does not renew it
        grown((1, 0), (1, 1), (1, 2), (2, 1)),  # twice the heads that were named
        grown((1, 0)),
        grown((1, 0), (2, 1)),  # a block that was named before
        grown((1, 0), size=120.0),  # above `level`
        15 * HEADS,
        15 * HEADS,
    ]
    alarms = judged([look(5 * n, ("max_logit", "value", table)) for n, table in enumerate(tables)])
    assert [alarm.step for alarm in alarms] == [5, 15, 30, 45, 55]
    assert [alarm.renewed for alarm in alarms] == [False, True, True, True, False]
    assert {alarm.key for alarm in alarms} == {alarms[0].key}
    assert alarms[1].layers == (1, 2)
    assert "in blocks 1 and 2 (2 heads), at step 15, and in part since step 5" in alarms[1].sentence
    assert "Logits reach 120" in alarms[3].sentence
    assert alarms[-1].ended


def test_a_weight_that_leaves_zero_is_no_nan() -> None:
    ones = np.ones(3)
    tables = (ones, at((1,), np.nan, ones))
    assert not judged([look(n, ("update_ratio", "output", one)) for n, one in enumerate(tables, start=1)])


def test_gradients_are_compared_with_the_first_look_that_has_them() -> None:
    ones = np.ones(3)
    looks = [look(0, ("entropy", "value", HEADS)), look(1, ("gradient_norm", "key", ones))]
    (alarm,) = judged([*looks, look(2, ("gradient_norm", "key", at((2,), np.nan, ones)))])
    assert (alarm.rule, alarm.severity, alarm.layers) == ("nonfinite", "warning", (2,))
