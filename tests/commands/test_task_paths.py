"""The record of a task: a loaded file gives the same numbers, and wrong fields are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import attnscope
from attnscope.commands.task_paths.record import TaskPaths
from tests.reports.sample_task_paths import sample_task_paths


def test_loaded_record_equals_saved_record(tmp_path: Path) -> None:
    task = sample_task_paths()
    read = TaskPaths.load(task.save(tmp_path / "task_paths.json"))
    assert read.heads == task.heads
    assert read.agreement == task.agreement
    first, second = task.heads[:2]
    assert (first.block, first.head, first.sure) == (0, 0, True)
    assert (second.block, second.head, second.sure) == (1, 0, True)
    assert [one.sure for one in task.heads].count(True) >= 2
    assert not task.heads[-1].sure
    assert first.low < first.value < first.high
    assert all(one.pearson is not None and one.pearson.value > 0.99 for one in task.agreement)
    assert task.sentences()[0].startswith("Block 0 head 0")
    assert "block 1 head 0" in task.sentences()[0].split(";")[1]


def test_too_few_prompts_are_told() -> None:
    few = sample_task_paths(15)
    assert not any(one.sure for one in few.heads)
    assert few.sentences()[0] == "15 prompts are too few to be sure of the sign of any head: give 16 or more."
    some = sample_task_paths(16)
    assert some.heads[0].sure
    assert "16 prompts are too few to be sure of the interval of a single head: give 24." in some.sentences()
    assert "too few" not in " ".join(sample_task_paths().sentences())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda data: data.update(prompts=[]), "one prompt or more"),
        (lambda data: data["prompts"][1]["values"].pop(), r"prompts\[1\]: every block needs as many heads"),
        (lambda data: data["prompts"][2]["removal"]["loss"][0].pop(), r"prompts\[2\]: every block needs as many heads"),
        (lambda data: data["prompts"][3].update(removal=None), r"prompts\[3\].removal"),
        (lambda data: data.update(removal="half"), "removal"),
    ],
)
def test_fields_that_contradict_each_other_are_refused_by_name(tmp_path: Path, change: Any, says: str) -> None:
    data = sample_task_paths().to_json()
    change(data)
    path = tmp_path / "task_paths.json"
    path.write_text(json.dumps(data))
    with pytest.raises(attnscope.RefusalError, match=says):
        attnscope.load(path)
