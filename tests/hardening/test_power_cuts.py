"""Power cuts at every moment of every command, on a disk that keeps only what was forced to it (`power_cuts.py`).

Every result is the old one or the new one, and it is the new one as soon as the command has said so. Work that was
saved is never lost: a checkpoint is removed only when its successor is on disk. A log loses the looks of its last
second.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from attnscope.commands.timeline.read import parse_looks
from attnscope.commands.watch import run_folder
from tests.hardening.disk import Disk
from tests.hardening.power_cuts import PowerCuts, Tree
from tests.hardening.scenarios import quick
from tests.hardening.test_faults import NAMES, Laboratory, laboratory

__all__ = ["laboratory"]
LOGS = ("watch", "log", "resumed log")


def cuts(laboratory: Laboratory, name: str) -> Iterator[tuple[int, bool, Tree, Path]]:
    """Yield every state after every operation of a scenario, once each, and whether the command has ended."""
    scenario, folder = laboratory.every[name], laboratory.folder()
    scenario.before(folder)
    model = PowerCuts(folder)
    model.begin()
    with Disk(folder) as disk:
        assert scenario.act(folder)[0] == 0
    seen: set[str] = set()
    for number, operation in enumerate([None, *disk.operations]):
        if operation is not None:
            model.replay(operation)
        ended = number == len(disk.operations)
        for state in model.states():
            digest = hashlib.sha256(repr((ended, sorted(state.items()))).encode()).hexdigest()
            if digest not in seen:
                seen.add(digest)
                yield number, ended, state, folder


def restored(laboratory: Laboratory, state: Tree) -> Path:
    """Write a state to the real disk."""
    folder = laboratory.folder()
    for name, content in state.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("name", [name for name in NAMES if name not in (*LOGS, "rows")])
def test_results_are_old_or_new_and_new_when_the_command_ends(laboratory: Laboratory, name: str) -> None:
    scenario = laboratory.every[name]
    first = laboratory.folder()
    scenario.before(first)
    old = scenario.results(first)
    states = 0
    for number, ended, state, folder in cuts(laboratory, name):
        new = scenario.results(folder)
        inside = "out/" if (folder / "out").exists() else "model/" if (folder / "model").exists() else ""
        states += 1
        for result in new:
            content = state.get(f"{inside}{result}")
            assert content in ([new[result]] if ended else [old.get(result), new[result]]), (number, result)
        if name == "save_treated":
            there = [result for result in new if f"{inside}{result}" in state]
            assert len(there) in (0, len(new)), (number, there)  # all of the folder or nothing
    print(f"{name}: {states} states")
    assert states > 3


def saved_sequences(state: Tree) -> int:
    """How many sequences of a scan need not be read again."""
    if any(name.endswith("out/survey.json") for name in state):
        return 4
    shards = 2 * sum(name.endswith(".shard") for name in state)
    partial = state.get("out/survey.partial.json")
    return shards + (json.loads(partial)["provenance"]["corpus"]["sequences"] if partial else 0)


@pytest.mark.parametrize("name", ["scan", "scan with workers"])
def test_work_that_was_saved_is_never_lost(laboratory: Laboratory, name: str) -> None:
    worst: dict[int, int] = {}
    for number, _, state, _ in cuts(laboratory, name):
        worst[number] = min(worst.get(number, 9), saved_sequences(state))
    floors = [worst[number] for number in sorted(worst)]
    assert floors == sorted(floors)  # from one operation to the next it only grows
    assert floors[-1] == 4


@pytest.mark.parametrize("seconds", [0.0, 3600.0], ids=["every look forced", "no look forced before the end"])
@pytest.mark.parametrize("name", LOGS)
def test_a_log_loses_what_its_rule_says_and_nothing_else(
    laboratory: Laboratory, name: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_folder, "SYNC_SECONDS", seconds)
    scenario = laboratory.every[name]
    least, states = 0, 0
    first = laboratory.folder()
    scenario.before(first)
    steps_before = [int(look.removeprefix("look ")) for look in scenario.results(first)]
    for number, ended, state, folder in cuts(laboratory, name):
        states += 1
        whole = [one.step for one in parse_looks((folder / "run" / "looks.jsonl").read_bytes()).looks]
        read = parse_looks(state.get("run/looks.jsonl", b""))
        beside = parse_looks(state.get("run/looks.jsonl.dropped", b""))
        steps = [one.step for one in read.looks]
        assert steps == whole[: len(steps)], number  # a beginning of the run, without a hole
        assert {*steps, *(one.step for one in beside.looks)} >= set(steps_before), number
        if ended:
            assert steps == whole
        least = max(least, len(steps))
    print(f"{name}: {states} states")
    assert least > 3


def test_forced_looks_are_there_after_the_operation_that_forces_them(laboratory: Laboratory) -> None:
    counts: dict[int, list[int]] = {}
    run_folder_seconds = run_folder.SYNC_SECONDS
    try:
        run_folder.SYNC_SECONDS = 0.0
        for number, _, state, _ in cuts(laboratory, "log"):
            counts.setdefault(number, []).append(len(parse_looks(state.get("run/looks.jsonl", b"")).looks))
    finally:
        run_folder.SYNC_SECONDS = run_folder_seconds
    least = [min(counts[number]) for number in sorted(counts)]
    assert max(max(counts[number]) - min(counts[number]) for number in counts) <= 1  # one look at most is at stake
    assert least[-1] == 6


def test_rows_of_a_task_are_there_when_they_are_added(laboratory: Laboratory) -> None:
    for number, ended, state, folder in cuts(laboratory, "rows"):
        lines, whole = (
            content.split(b"\n")[:-1]
            for content in (state.get("rows.jsonl", b""), (folder / "rows.jsonl").read_bytes())
        )
        assert [line for line in lines if line.strip(b"\0")] == whole[: len(lines)], number
        assert not ended or lines == whole


@pytest.mark.parametrize("every", [25, pytest.param(3, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", ["scan", "scan in shards", "resumed log", "rows", "save_treated", "experiment"])
def test_the_next_run_ends_with_the_same_result(laboratory: Laboratory, name: str, every: int) -> None:
    scenario = laboratory.every[name]
    with quick():
        for number, (_, _, state, folder) in enumerate(cuts(laboratory, name)):
            if number % every == 0:
                place = restored(laboratory, state)
                code, said = scenario.again(place)
                assert code == 0, said
                assert scenario.results(place) == scenario.results(folder)
                shutil.rmtree(place)
