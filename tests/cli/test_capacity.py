"""`attnscope capacity` as a person types it."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from attnscope.commands.capacity import widths
from attnscope.commands.capacity.run import capacity
from attnscope.commands.capacity.widths import Measurement, Point
from attnscope.core.errors import RefusalError
from attnscope.core.progress import Advance
from tests.cli.test_compile import invoke, refused
from tests.commands.compile.stand_in import exact_construction, registered


@pytest.fixture(autouse=True)
def one_construction(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(widths, "known_widths", lambda: {})
    import_module("attnscope.commands.compile.run")  # imported here, because a first import below would keep the stub
    with registered(monkeypatch, exact_construction("joint", needs=5)):
        yield


ASKED = ("capacity", "-n", "12", "-k", "1", "--seeds", "1", "--budget", "20")


def test_the_table_has_bounds_and_constructions() -> None:
    result = invoke(*ASKED, "--verbose")
    assert result.exit_code == 0, (result.output, result.exception)
    for words in ("1 of 12 tokens", "Width 5 is enough", "at least 2", "Lower bounds of the width", "universal",
                  "Width of each construction", "joint", "5 at seed 0", "the theorem"):  # fmt: skip
        assert words in " ".join(result.stdout.split())
    assert "Lower bounds of the width" not in invoke(*ASKED).stdout


def test_json_and_chart(tmp_path: Path) -> None:
    result = invoke(*ASKED, "--json", "--chart", tmp_path / "c.svg")
    assert result.exit_code == 0, (result.output, result.exception)
    data = json.loads(result.stdout)
    assert data["needs"][0]["d"] == 5
    assert data["chart"] == str(tmp_path / "c.svg")
    assert (tmp_path / "c.svg").read_bytes().startswith(b"<svg")
    again = json.loads(invoke(*ASKED, "--json").stdout)
    assert again["needs"] == data["needs"]


def test_no_cache_measures_again(tmp_path: Path) -> None:
    invoke(*ASKED)
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.json")}
    assert kept
    invoke(*ASKED, "--no-cache")
    assert all(path.stat().st_mtime_ns > before for path, before in kept.items())


def test_interruption_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(point: Point, seconds: float, advance: Advance) -> Measurement:
        raise KeyboardInterrupt

    monkeypatch.setattr("attnscope.commands.capacity.worklist.measure", interrupted)
    result = invoke(*ASKED)
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1] == "attnscope: interrupted; nothing new was measured or kept."
    assert "No width was measured for 1 of 12 tokens in the time given" in " ".join(result.stdout.split())


def test_interruption_of_a_search_that_has_found_something_ends_the_measuring_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = exact_construction("joint", needs=5)
    asked_for: list[int] = []

    def build(pattern: Any, width: int, *rest: Any) -> Any:
        asked_for.append(width)
        if len(asked_for) == 2:
            raise KeyboardInterrupt
        return whole.function(pattern, width, *rest)

    with registered(monkeypatch, replace(whole, function=build)):
        result = invoke(*ASKED)
    assert result.exit_code == 130, result.output
    assert len(asked_for) == 2
    assert not list((tmp_path / "cache").rglob("*.json"))
    assert "nothing new was measured or kept" in result.stderr
    assert not list(tmp_path.glob("attnscope-*"))


def test_an_interruption_says_how_much_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    honest = widths.measure
    asked_for: list[Point] = []

    def second_interrupted(point: Point, seconds: float, advance: Advance) -> Measurement:
        asked_for.append(point)
        if len(asked_for) == 2:
            raise KeyboardInterrupt
        return honest(point, seconds, advance)

    monkeypatch.setattr("attnscope.commands.capacity.worklist.measure", second_interrupted)
    result = invoke("capacity", "-n", "12", "-k", "1", "--seeds", "2", "--budget", "20")
    assert result.exit_code == 130
    assert "1 measurement done so far is kept: run the same command to continue." in result.stderr
    assert len(list((tmp_path / "cache").rglob("*.json"))) == 1


def test_python_takes_a_number_of_seeds() -> None:
    assert capacity(12, 1, seeds=2, budget=0.0).seeds == (0, 1)


def test_answer_is_printed_even_if_its_chart_is_refused(tmp_path: Path) -> None:
    asked = ("capacity", "-n", "12", "-k", "1", "--budget", "0", "--chart", tmp_path / "c.svg")
    result = invoke(*asked)
    assert isinstance(result.exception, RefusalError)
    assert "no curve to draw" in result.exception.sentence
    assert "need at least 2" in " ".join(result.stdout.split())
    assert json.loads(invoke(*asked, "--json").stdout)["chart"] is None
    assert not (tmp_path / "c.svg").exists()


def test_refusals(tmp_path: Path) -> None:
    refused("capacity", "-n", "8", "-k", "9", says="between 1 and 8")
    refused("capacity", "-n", str(2**40), "-k", "2", says="at most 16777216")
    refused("capacity", "-n", "8", "-k", "2", "--dtype", "flot32", says="float32")
    refused("capacity", "-n", "8", "-k", "2", "--leak", "0", says="leak")
    refused("capacity", "-n", "8", "-k", "2", "--chart", tmp_path / "c.gif", says=".png")
    refused("capacity", "-n", "8", "-k", "2", "--chart", tmp_path / "no" / "c.png", says="no folder")
    refused("capacity", "-n", "8", says="give -n and -k")
    for words in (("-n", "1", "-k", "1"), ("-n", "8", "-k", "2", "--budget", "-1")):
        assert invoke("capacity", *words).exit_code == 2
