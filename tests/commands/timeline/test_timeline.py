"""A run as a record: series with a step axis, alarms with their ends, a table, files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnscope.commands.timeline.record import Timeline
from attnscope.commands.timeline.words import verdict, when
from attnscope.commands.watch.look import Look, fingerprint
from attnscope.commands.watch.values import Values
from attnscope.core.decoding import FieldError
from attnscope.core.errors import RefusalError
from attnscope.core.hashes import unchecked
from tests.commands.timeline.sample import look, sample_timeline


def test_series_have_a_row_for_each_look() -> None:
    timeline = sample_timeline(20)
    entropy = timeline.series("entropy")
    assert entropy.shape == (20, 3, 2)
    assert entropy[4, 2, 1] == timeline.looks[4].values[4].numbers[2, 1]
    assert timeline.series("relative_residual").shape == (20, 4)
    assert timeline.series("spike", "second")[0, 0] == pytest.approx(10.0)
    assert timeline.steps.tolist() == [50 * (n + 1) for n in range(20)]
    assert timeline.losses[0] == pytest.approx(timeline.looks[0].loss)


def test_a_look_without_a_measure_is_a_row_of_nan() -> None:
    whole = sample_timeline(3)
    bare = replace(whole.looks[1], values=(), loss=None)
    timeline = replace(whole, looks=(whole.looks[0], bare, whole.looks[2]))
    assert np.isnan(timeline.series("entropy")).all(axis=(1, 2)).tolist() == [False, True, False]
    assert np.isnan(timeline.losses).tolist() == [False, True, False]


def test_measures_come_in_the_order_of_the_header_and_parts_in_that_of_the_card() -> None:
    assert sample_timeline(1).keys == (
        ("relative_residual", "value", "model", "stream"),
        ("spike", "value", "model", "stream"),
        ("spike", "second", "model", "stream"),
        ("spike", "third", "model", "stream"),
        ("entropy", "value", "model", "self"),
        ("sink_mass", "value", "model", "self"),
    )


def test_unknown_words_are_refused_with_what_there_is() -> None:
    timeline = sample_timeline(2)
    with pytest.raises(RefusalError, match=r"no measure 'entropi'\. Did you mean 'entropy'"):
        timeline.series("entropi")
    with pytest.raises(RefusalError, match="its parts, stacks and sites are value model self"):
        timeline.series("entropy", site="cross")


def test_an_alarm_has_the_step_of_its_end() -> None:
    began = sample_timeline(20).alarms
    assert [(spell.alarm.rule, spell.alarm.since, spell.alarm.step, spell.ended) for spell in began] == [
        ("entropy_collapse", 750, 850, None)
    ]
    assert sample_timeline(40).alarms[0].ended == 1350


def test_renewals_belong_to_their_alarm() -> None:
    run = sample_timeline(40)
    first = run.alarms[0].alarm
    later = replace(first, step=900, layers=(1, 2), heads=((1, 0), (2, 1)), renewed=True, sentence="Now in two layers.")
    looks = tuple(replace(one, alarms=(later,)) if one.step == 900 else one for one in run.looks)
    whole = Timeline.from_json(json.loads(json.dumps(replace(run, looks=looks).to_json())))
    (spell,) = whole.alarms
    assert (spell.alarm, spell.renewals, spell.ended) == (first, (later,), 1350)
    assert spell.sentence == (
        f"entropy_collapse: 0.4 < 0.5 (block 1, head 0). {first.sentence} "
        "entropy_collapse: 0.4 < 0.5 (blocks 1 and 2, 2 heads). Now in two layers."
    )
    old = [alarm for one in run.to_json()["looks"] for alarm in one["alarms"]]
    for alarm in old:
        del alarm["renewed"]  # records of before have no such field
    assert Look.from_json({**run.looks[16].to_json(), "alarms": old[:1]}).alarms == (first,)


def test_alarms_of_earlier_files_with_severity_info_are_notes() -> None:
    look = sample_timeline(20).looks[16].to_json()
    look["alarms"][0]["severity"] = "info"
    assert [alarm.severity for alarm in Look.from_json(look).alarms] == ["note"]


def test_ended_alarms_have_two_steps_and_others_are_still_on() -> None:
    assert verdict(sample_timeline(40)).sentence.endswith("since step 750; the loss was normal then. (1 warning)")
    assert when(sample_timeline(20).alarms[0]) == "Since step 850, still on"
    assert when(sample_timeline(40).alarms[0]) == "Steps 850 to 1,350"


def test_tokens_a_second_between_looks() -> None:
    # 50 steps of 2,048 tokens in four seconds
    np.testing.assert_allclose(sample_timeline(4).tokens_a_second, 50 * 2048 / 4)
    still = tuple(replace(one, seconds=0.0) for one in sample_timeline(3).looks)
    assert np.isnan(replace(sample_timeline(3), looks=still).tokens_a_second).all()


def test_the_table_has_a_row_for_each_number() -> None:
    frame = sample_timeline(4).table()
    assert len(frame) == 4 * (4 * 4 + 2 * 6)
    one = frame[(frame.measure == "entropy") & (frame.step == 100) & (frame.layer == 2) & (frame["head"] == 1)]
    assert one.value.item() == look(1).values[4].numbers[2, 1]
    assert frame[frame.measure == "spike"]["head"].isna().all()


def test_runs_beside_each_other_are_saved_together(tmp_path: Path) -> None:
    both = replace(sample_timeline(3), beside=(sample_timeline(2, name="other", seed=1),))
    read = Timeline.load(both.save(tmp_path / "timeline.json"))
    assert [run.name for run in read.runs] == ["run", "other"]
    assert set(read.table().run) == {"run", "other"}
    assert repr(read) == "<Timeline of run: 3 looks to step 150, 0 alarms, beside 1 other run>"
    document = json.loads((tmp_path / "timeline.json").read_text())
    del document["sha256"]
    document["beside"][0]["beside"] = [dict(document["beside"][0])]
    (tmp_path / "timeline.json").write_text(json.dumps(document))
    with pytest.raises(RefusalError, match=r"damaged \(beside\[0\]"):
        Timeline.load(tmp_path / "timeline.json")


def test_numbers_that_are_not_finite_travel_as_null() -> None:
    numbers: Any = [[1.23456789, np.inf], [None, np.nan]]
    values = Values.of("entropy", "value", "model", "self", numbers)
    assert values.heads == [[1.23457, None], [None, None]]
    assert values.layers is None
    line = Look(1, float("nan"), 0.0, 0, 0.0, (values,)).line()
    assert b"NaN" not in line
    read = Look.from_json(json.loads(unchecked(line.rstrip())))
    assert read.loss is None
    np.testing.assert_array_equal(read.values[0].numbers, [[1.23457, np.nan], [np.nan, np.nan]])


def test_six_figures_of_any_size() -> None:
    numbers = np.concatenate([10.0 ** np.arange(-293, 300, 7.0) * 1.23456789, [0.0, -2.5, 999999.5, -1e-320]])
    said = Values.of("spike", "value", "model", "stream", numbers).layers
    assert said is not None
    # six figures: half a unit in the sixth is at most 5e-6 of a number
    np.testing.assert_allclose(np.array(said[:-1], dtype=float), numbers[:-1], rtol=5e-6, atol=0)
    assert abs(said[-1] or 0.0) < 1e-300
    assert max(len(repr(one)) for one in said[40:43]) <= len("1.23457e-13")


@pytest.mark.parametrize(
    "rows",
    [[["1", 2]], [[True, 2]], [[1], [1, 2]], "text", [1, 2], [[[1]]], [[10**400]]],
)
def test_values_that_are_not_numbers_are_refused(rows: object) -> None:
    with pytest.raises(FieldError):
        Values.from_json({"measure": "m", "part": "value", "stack": "s", "site": "self", "heads": rows})


def test_a_fingerprint_is_of_structure_and_not_of_order() -> None:
    one = fingerprint("Model", {"a": (2, 3), "b": (4,)})
    assert one == fingerprint("Model", [("b", [4]), ("a", [2, 3])])
    assert (
        len({one, fingerprint("Other", {"a": (2, 3), "b": (4,)}), fingerprint("Model", {"a": (3, 2), "b": (4,)})}) == 3
    )
