"""Alarm rules on numbers of the training itself: planted faults ring, healthy and harmless changes do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from attnscope.commands.watch.alarm_judge import AlarmJudge
from attnscope.commands.watch.look import Alarm, Look
from attnscope.commands.watch.rule import forecast
from attnscope.commands.watch.training_state import TrainingState
from attnscope.commands.watch.values import Values


def judged(looks: Sequence[Look]) -> list[Alarm]:
    judge = AlarmJudge()
    return [alarm for look in looks for alarm in judge(look)]


def states(name: str, values: Sequence[float | int | None], **others: Any) -> list[Look]:
    """Return looks every 10 steps with one field of the training state."""
    return [
        Look(10 * n, 2.0, 0.0, 0, 0.0, training=TrainingState(**{name: value, **others}))
        for n, value in enumerate(values, start=1)
    ]


def blocks(measure: str, *tables: Sequence[float], part: str = "value") -> list[Look]:
    return [
        Look(10 * n, 2.0, 0.0, 0, 0.0, (Values.of(measure, part, "model", "self", np.array(table)),))
        for n, table in enumerate(tables, start=1)
    ]


FIELDS: dict[str, tuple[str, list[Any], list[list[Any]]]] = {
    # rule: (field, values of which the last must ring, lists of values that must not)
    "repeated_data": ("repeated", [0.0] * 5 + [1.0], [[1.0] * 6, [0.0] * 5 + [0.2]]),
    "missing_first_token": ("usual_first_token", [1.0] * 5 + [0.25], [[0.1] * 6, [1.0] * 5 + [0.9]]),
    "learning_rate_jump": (
        "learning_rate",
        [1e-4, 3e-4, 3e-4, 2e-4, 2e-4, 2e-4, 2e-3],
        [
            [1e-5, 1e-4, 2e-4, 3e-4, 4e-4, 5e-4],  # warm-up
            [1e-4, 3e-4, 3e-4, 1e-4, 1e-5, 1e-6, 3e-4],  # warm restart
            [3e-4, 3e-4, 3e-4, 3e-4, 3.3e-4],
        ],
    ),
    "optimizer_reset": ("optimizer_steps", [10, 20, 30, 2], [[10, 20, 30, 40], [None, None, None, None]]),
    "loss_jump": (
        "mean_loss",
        [2.0, 2.1, 1.9, 2.0, 2.1, 1.9, 2.0, 2.1, 1.9, 2.0, 3.5],
        [[2.0, 2.1, 1.9, 2.0, 2.1, 1.9, 2.0, 2.1, 1.9, 2.0, 2.15], [2.0] * 10 + [0.5]],
    ),
}


@pytest.mark.parametrize("rule", FIELDS)
def test_rules_on_the_training_state(rule: str) -> None:
    field, rings, quiet = FIELDS[rule]
    (alarm,) = judged(states(field, rings))
    assert (alarm.rule, alarm.step, alarm.layers) == (rule, 10 * len(rings), ())
    assert alarm.compared.startswith(f"{rule}: ")
    assert (alarm.value > alarm.threshold) == (">" in alarm.compared)
    for values in quiet:
        assert not judged(states(field, values)), values


def test_alarms_of_the_data_hold_while_the_fault_lasts() -> None:
    for field, usual, broken in (("repeated", 0.0, 1.0), ("usual_first_token", 1.0, 0.0)):
        assert [alarm.ended for alarm in judged(states(field, [usual] * 5 + [broken] * 30))] == [False]


def test_labels_that_move_by_one_place() -> None:
    def looks(*places: tuple[float, float, float]) -> list[Look]:
        states = [TrainingState(labels_before=a, labels_same=b, labels_after=c) for a, b, c in places]
        return [Look(10 * n, 2.0, 0.0, 0, 0.0, training=state) for n, state in enumerate(states, start=1)]

    own, after = (0.02, 1.0, 0.02), (0.0, 0.02, 1.0)
    alarms = judged(looks(own, own, own, after, after))
    assert [(alarm.rule, alarm.severity) for alarm in alarms] == [("shifted_labels", "critical")]
    assert "one place after" in alarms[0].sentence
    assert not judged(looks(own, own, own, (0.3, 0.9, 0.3), own))
    assert not judged(looks(after, after, after, after))  # a loop that shifts labels itself from the start


def test_the_first_block_that_sees_the_future_is_named() -> None:
    (alarm,) = judged(blocks("future_influence", [0, 0, 0, 0], [0, 0, 0.2, 0.3]))
    assert (alarm.rule, alarm.severity, alarm.layers) == ("sees_the_future", "critical", (2,))
    assert alarm.compared == "sees_the_future: 0.2 > 0.001 (block 2)"
    assert not judged(blocks("future_influence", [0, 0, 0, 0], [0, 1e-6, 1e-5, 1e-5]))


@pytest.mark.parametrize("measure", ["update_ratio", "gradient_norm"])
def test_a_block_that_stops_while_others_move(measure: str) -> None:
    moving, stopped, all_stopped = [1e-3, 2e-3, 1e-3], [1e-3, 0.0, 1e-3], [0.0, 0.0, 0.0]
    (alarm,) = judged(blocks(measure, moving, stopped, part="query"))
    assert (alarm.rule, alarm.layers) == ("frozen_block", (1,))
    assert not judged(blocks(measure, stopped, stopped, part="query"))  # frozen on purpose
    assert not [a for a in judged(blocks(measure, moving, all_stopped, part="query")) if a.rule == "frozen_block"]


def test_a_frozen_block_without_a_gradient_is_not_called_nan() -> None:
    def look(step: int, update: float, gradient: float) -> Look:
        rows = {"update_ratio": [1e-3, update, 1e-3], "gradient_norm": [1.0, gradient, 1.0]}
        own = tuple(Values.of(name, "query", "model", "self", row) for name, row in rows.items())
        return Look(step, 2.0, 0.0, 0, 0.0, own)

    assert {a.rule for a in judged([look(1, 1e-3, 1.0), look(2, 0.0, np.nan)])} == {"frozen_block"}
    assert {a.rule for a in judged([look(1, 1e-3, 1.0), look(2, np.nan, np.nan)])} == {"nonfinite"}


def test_weights_on_a_coarse_grid() -> None:
    (alarm,) = judged(blocks("distinct_weights", [1.0, 1.0], [1.0, 0.35]))
    assert (alarm.rule, alarm.layers) == ("lost_precision", (1,))
    assert not judged(blocks("distinct_weights", [0.35, 0.35], [0.35, 0.3]))  # a bfloat16 model


def test_norms_that_shrink() -> None:
    (alarm,) = judged(blocks("norm_gain", [1.0, 1.0], [0.99, 0.8]))
    assert (alarm.rule, alarm.layers) == ("norms_shrink", (1,))
    assert not judged(blocks("norm_gain", [1.0, 1.0], [0.97, 1.3]))


def test_updates_larger_than_all_before() -> None:
    before = [[1e-3, 2e-3]] * 10
    jumped = [5e-3, 9e-3]
    (alarm,) = judged(blocks("update_ratio", *before, jumped, jumped, part="query"))
    assert (alarm.rule, alarm.step, alarm.layers) == ("update_jump", 120, (0, 1))
    assert not judged(blocks("update_ratio", *before, jumped, before[0], part="query"))
    restart = [[1e-3, 2e-3], *[[1e-4, 2e-4]] * 9, *[[1e-3, 2e-3]] * 2]
    assert not judged(blocks("update_ratio", *restart, part="query"))


def test_an_extrapolation_is_called_one() -> None:
    assert forecast(50.0, 2.0, 100, 100.0, 800) == ("at this rate, an extrapolation, 100 is reached at step 900; ")
    assert forecast(120.0, 2.0, 100, 100.0, 800) == ""
    assert forecast(50.0, 0.5, 100, 100.0, 800) == ""
    looks = [
        Look(step, 2.0, 0.0, 0, 0.0, (Values.of("spike", "value", "model", "stream", [size, 1.0]),))
        for step, size in ((100, 1000.0), (200, 10000.0))
    ]
    (alarm,) = judged(looks)
    assert alarm.compared == "spike_growth: 100,000 > 65,504 (position 0 of the stream)"
    assert "at this rate, an extrapolation, 65,504 is reached at step 282" in alarm.sentence
