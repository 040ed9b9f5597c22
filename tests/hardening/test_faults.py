"""Every file operation of every command failed in turn: with a full disk, with a broken one, and with a sudden end.

After each failure every result is whole or as it was before, an error is one sentence, and the same command then ends
with the same result. `make test` tries some operations of each command, `make test-all` tries all.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.hardening.disk import Disk, How, Stopped
from tests.hardening.scenarios import Files, Scenario, quick, scenarios

NAMES = (
    *("scan", "scan in shards", "scan with workers", "merge", "report", "export"),
    *("watch", "log", "resumed log", "rows", "treat", "save_treated", "experiment"),
)
SAMPLED = 5  # operations of each command that `make test` fails
HOW: tuple[How, ...] = get_args(How)


@dataclass
class Laboratory:
    every: dict[str, Scenario]
    place: Path
    folders: int = 0

    def folder(self) -> Path:
        self.folders += 1
        made = self.place / f"try{self.folders}"
        made.mkdir()
        return made


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    place = tmp_path_factory.mktemp("faults")
    (place / "given").mkdir()
    every = scenarios(place / "given")
    assert tuple(sorted(every)) == tuple(sorted(NAMES))
    with quick():
        yield Laboratory(every, place)


@dataclass(frozen=True)
class Undisturbed:
    operations: int
    before: Files
    after: Files
    names: set[str]


def undisturbed(laboratory: Laboratory, scenario: Scenario) -> Undisturbed:
    folder = laboratory.folder()
    scenario.before(folder)
    before = scenario.results(folder)
    with Disk(folder) as disk:
        code, said = scenario.act(folder)
    assert (code, said) == (0, "")
    names = {path.name for path in folder.rglob("*")}
    return Undisturbed(disk.begun, before, scenario.results(folder), names)


def fail(laboratory: Laboratory, scenario: Scenario, expected: Undisturbed, operation: int, how: How) -> list[str]:
    """Fail one operation; return what is wrong afterwards."""
    folder, wrong = laboratory.folder(), []
    scenario.before(folder)
    disk = Disk(folder, operation, how)
    code: int | None = None
    try:
        with disk:
            code, said = scenario.act(folder)
    except Stopped:
        pass
    except Exception as error:
        wrong.append(f"raised {error!r}")
    else:
        if code not in (0, 2) or (code == 2) != (len(said.splitlines()) == 1):
            wrong.append(f"exit code {code}: {said!r}")
    results = scenario.results(folder)
    for name, content in {**expected.before, **expected.after, **results}.items():
        whole = [files[name] for files in (expected.before, expected.after) if name in files]
        if name in results and results[name] not in whole:
            wrong.append(f"{name} is neither the old one nor the new one")
        if name not in results and name in expected.before:
            wrong.append(f"{name} is lost")
        assert content is not None
    if code == 0 and not scenario.grows and results != expected.after:
        wrong.append("success without the result")
    code, said = scenario.again(folder)
    if code != 0:
        wrong.append(f"the next run ends with {code}: {said}")
    if scenario.results(folder) != expected.after:
        wrong.append("the next run ends with another result")
    left = {path.name for path in folder.rglob("*")} - expected.names - set(scenario.spared)
    if left:
        wrong.append(f"left behind: {sorted(left)}")
    shutil.rmtree(folder)
    return [f"operation {operation} ({disk.failed}), {how}: {words}" for words in wrong]


@pytest.mark.parametrize("name", NAMES)
def test_some_operations_fail(laboratory: Laboratory, name: str) -> None:
    scenario = laboratory.every[name]
    expected = undisturbed(laboratory, scenario)
    sampled = {1 + round(part * (expected.operations - 1) / (SAMPLED - 1)) for part in range(SAMPLED)}
    tries = zip(sorted(sampled), (*HOW, *HOW), strict=False)
    assert not [words for operation, how in tries for words in fail(laboratory, scenario, expected, operation, how)]


@pytest.mark.thorough
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", NAMES)
def test_every_operation_fails(laboratory: Laboratory, name: str, how: How, record_property: Any) -> None:
    scenario = laboratory.every[name]
    expected = undisturbed(laboratory, scenario)
    record_property("operations", expected.operations)
    print(f"{name}, {how}: {expected.operations} operations")
    every = range(1, expected.operations + 1)
    assert not [words for operation in every for words in fail(laboratory, scenario, expected, operation, how)]
