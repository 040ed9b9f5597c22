"""`attnscope compile` as a person types it: exit codes, refusals, what is printed and what is written."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from safetensors import safe_open
from typer.testing import CliRunner, Result

from attnscope.cli.capacity import capacity
from attnscope.cli.compile import compile as command
from attnscope.commands.compile.export import load_head
from attnscope.core.errors import RefusalError
from attnscope.core.registry import constructions
from attnscope.heads.accuracy import DTYPES
from attnscope.heads.generate import GENERATORS
from tests.commands.compile.stand_in import exact_construction, registered

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
app.command()(command)
app.command()(capacity)

KEYS = {"method", "n", "k", "d", "dtype", "ratio_error", "leak", "max_logit", "lower_bound", "proved_minimal",
        "seconds", "seed"}  # fmt: skip


def invoke(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def refused(*words: str | Path, says: str) -> None:
    """Return the sentence of the refusal, which `attnscope.cli.main` prints before it exits with 2."""
    result = invoke(*words)
    assert isinstance(result.exception, RefusalError), (result.exception, result.output)
    assert says in result.exception.sentence
    assert result.stdout == ""


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_generated_pattern_is_compiled_and_written() -> None:
    result = invoke("compile", "permutation", "-n", "12", "--seed", "3", "--verbose")
    assert result.exit_code == 0, result.output
    for word in ("permutation, n=12", "width", "lower bound", "ratio error", "leak", "proved minimal", "joint"):
        assert word in result.stdout
    folder = Path("attnscope-permutation-n12-k1")
    head, certificate = load_head(folder / "head.safetensors")
    assert (head.n, head.width, certificate["reached"]) == (12, 2, True)
    assert (folder / "head.html").read_text().startswith("<!DOCTYPE html>")
    brief = invoke("compile", "permutation", "-n", "12", "--seed", "3").stdout
    assert "A head of width 2 realises permutation, n=12" in brief
    assert "largest logit" not in brief


def test_json_is_all_that_is_printed(tmp_path: Path) -> None:
    result = invoke("compile", "permutation", "-n", "12", "--json", "--out", tmp_path / "h.safetensors",
                    "--chart", tmp_path / "h.svg")  # fmt: skip
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert set(data) >= KEYS
    assert data["head"] == str(tmp_path / "h.safetensors")
    assert (tmp_path / "h.svg").read_bytes().startswith(b"<svg")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["h.safetensors", "h.svg"]


def test_a_file_is_compiled_and_normalised_on_request(tmp_path: Path) -> None:
    np.save(tmp_path / "p.npy", np.eye(6)[[1, 2, 3, 4, 5, 0]] * 2.0)
    refused("compile", tmp_path / "p.npy", says="`normalise=True`")
    assert invoke("compile", tmp_path / "p.npy", "--normalise").exit_code == 0


def test_causal_patterns(tmp_path: Path) -> None:
    np.save(tmp_path / "p.npy", np.eye(6)[[0, 0, 1, 2, 3, 4]])
    result = invoke("compile", tmp_path / "p.npy", "--causal", "--width", "2", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["causal"] is True
    np.save(tmp_path / "q.npy", np.eye(6)[[1, 0, 1, 2, 3, 4]])
    refused("compile", tmp_path / "q.npy", "--causal", says="future")


def test_a_width_that_is_too_small_exits_with_1_and_keeps_the_best_head() -> None:
    result = invoke("compile", "union_of_permutations", "-n", "16", "-k", "3", "--width", "1",
                    "--method", "random_projection_rows")  # fmt: skip
    assert result.exit_code == 1, result.output
    assert "misses the accuracy in" in result.stdout
    assert "failing: it misses the accuracy" in result.stdout
    assert "marked as failing" in result.stderr
    with safe_open("attnscope-union_of_permutations-n16-k3/head.safetensors", "np") as stored:
        assert stored.metadata()["reached"] == "false"
        rows = json.loads(stored.metadata()["certificate"])["failing_rows"]
    assert f"{rows[0]}, {rows[1]}" in result.stdout


def test_interruption_exits_with_130_and_keeps_the_best_head(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = exact_construction(needs=3, first=8)

    def build(pattern: Any, width: int, *rest: Any) -> Any:
        if width < 8:
            raise KeyboardInterrupt
        return whole(pattern, width, *rest)

    with registered(monkeypatch, replace(whole, function=build)):
        result = invoke("compile", "permutation", "-n", "12")
    assert result.exit_code == 130, result.output
    head = Path("attnscope-permutation-n12-k1") / "head.safetensors"
    assert f"the best head so far is in {head}" in result.stderr
    assert load_head(head)[0].width == 8
    assert list(head.parent.iterdir()) == [head]


def test_interruption_before_the_first_head_writes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def build(*rest: Any) -> Any:
        raise KeyboardInterrupt

    with registered(monkeypatch, replace(exact_construction(first=8), function=build)):
        result = invoke("compile", "permutation", "-n", "12")
    assert result.exit_code == 130
    assert "nothing is written" in result.stderr
    assert not list(tmp_path.iterdir())


def test_refused_sources(tmp_path: Path) -> None:
    refused("compile", "nowhere.npz", says="nowhere.npz")
    refused("compile", "", says="No pattern is given")
    refused("compile", "--model", "", "--text", "some words", says="--model is empty")
    refused("compile", tmp_path / "no" / "pattern", says="pattern")
    refused("compile", "windw", "-n", "8", says="Did you mean 'window'?")
    refused("compile", "window", says="-n 256")
    refused("compile", "window", "-n", "8", "-k", "9", says="9")
    refused("compile", says="No pattern is given")
    np.save(tmp_path / "p.npy", np.eye(6))
    refused("compile", tmp_path / "p.npy", "-n", "6", says="generated patterns")
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 not an archive")
    refused("compile", tmp_path / "broken.npz", says="broken.npz")


def test_refused_options(tmp_path: Path) -> None:
    pattern = ("compile", "permutation", "-n", "6")
    refused(*pattern, "--method", "jiont", says="Did you mean 'joint'?")
    refused(*pattern, "--dtype", "flot32", says="float32")
    refused(*pattern, "--ratio-error", "0", says="ratio error")
    refused(*pattern, "--leak", "1.5", says="leak")
    refused(*pattern, "--method", "joint", "--universal", says="depend on the pattern")
    for words in (("--width", "0"), ("--width", "wide"), ("-k", "0"), ("--leak", "much")):
        assert invoke(*pattern, *words).exit_code == 2


def test_a_folder_named_like_a_generator_does_not_hide_it(tmp_path: Path) -> None:
    (tmp_path / "permutation").mkdir()
    assert invoke("compile", "permutation", "-n", "6").exit_code == 0


def test_help_names_every_generator_and_method() -> None:
    words = " ".join(invoke("compile", "--help").stdout.replace("│", " ").split())
    for name in (*GENERATORS, *constructions(), *DTYPES):
        assert re.search(rf"\b{name}\b", words), name


def test_exhausted_budget_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with registered(monkeypatch, exact_construction(needs=3, first=8)):
        result = invoke("compile", "permutation", "-n", "12", "--budget", "0")
    assert result.exit_code == 0, result.output
    assert "raise it with --budget" in result.stderr
    assert "smallest found in the time given" in " ".join(result.stdout.split())


def test_unusable_output_paths_are_refused(tmp_path: Path) -> None:
    pattern = ("compile", "permutation", "-n", "6")
    refused(*pattern, "--out", tmp_path / "no" / "h.safetensors", says="There is no folder")
    refused(*pattern, "--out", tmp_path / "head.pt", says=".safetensors")
    (tmp_path / "folder.safetensors").mkdir()
    refused(*pattern, "--out", tmp_path / "folder.safetensors", says="is a folder")
    refused(*pattern, "--chart", tmp_path / "head.gif", says=".png")
    assert [p.name for p in tmp_path.iterdir()] == ["folder.safetensors"]


def test_an_unwritable_place_is_refused_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnscope.cli.files.os.access", lambda path, mode: False)
    with registered(monkeypatch):  # nothing could be compiled
        refused("compile", "permutation", "-n", "6", "--out", tmp_path / "h.safetensors", says="cannot be written")


def test_refused_models() -> None:
    refused("compile", "window", "-n", "6", "--model", "pocket", says="one of them")
    refused("compile", "--model", "pocket", says="--text")
    refused("compile", "window", "-n", "6", "--text", "x", says="--model")
    refused("compile", "--model", "pocket", "--text", "x y", "-n", "4", says="the text says")
    refused("compile", "--model", "pocket", "--text", "x y", "--causal", says="leave them out with --model")


def test_the_pattern_of_a_real_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile the key that a head of pocket attends to most, for each token."""
    result = invoke("compile", "--model", "pocket", "--text", "The dog chased its own tail.", "-k", "1", "--block", "1",
                    "--head", "0", "--method", "moment_curve", "--json")  # fmt: skip
    assert result.exit_code == 0, (result.output, result.exception)
    data = json.loads(result.stdout)
    assert "block 1, head 0" in data["pattern"]
    assert data["causal"] is True
    assert data["k"] == 1
