"""File names, seeds and widths beyond any limit are refused in one sentence, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import attnscope
from attnscope.cli.main import app
from attnscope.core.errors import RefusalError
from tests.specimens import byte_tokenizer, tiny_llama

LONG = "x" * 300
PAST_64_BITS = str(2**64)


def refused(*words: str) -> str:
    done = CliRunner().invoke(app, list(words))
    assert isinstance(done.exception, RefusalError), (done.exception, done.output)
    assert done.stdout == ""
    return done.exception.sentence


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ("scan", LONG),
        ("scan", "pocket", LONG),
        ("scan", "pocket", "--out", LONG),
        ("paths", LONG, "A text."),
        ("paths", "pocket", "A text.", "--out", LONG),
        ("paths", "pocket", "A text.", "--chart", f"{LONG}.png"),
        ("report", LONG),
        ("report", "survey.json", "--out", f"{LONG}.html"),
        ("report", "survey.json", "--charts", LONG),
        ("compare", LONG, "b.json"),
        ("compare", "a.json", LONG),
        ("collapse", LONG),
        ("collapse", "pocket", LONG),
        ("collapse", "pocket", "--out", LONG),
        ("compile", f"{LONG}.npz"),
        ("compile", "permutation", "-n", "4", "--out", f"{LONG}.safetensors"),
        ("compile", "--model", LONG, "--text", "A text."),
        ("capacity", "-n", "8", "-k", "2", "--chart", f"{LONG}.png"),
        ("reproduce", "dong2021", "--out", LONG),
    ],
    ids=lambda words: " ".join(word[:12] for word in words),
)
def test_names_that_are_too_long_are_refused(here: Path, words: tuple[str, ...]) -> None:
    sentence = refused(*words)
    assert "longer than a file name can be" in sentence
    assert len(sentence) < 300
    assert not list(here.iterdir())


def test_model_with_the_longest_name_gets_a_default_folder(tmp_path: Path) -> None:
    from attnscope.cli.files import model_folder

    longest = tmp_path / ("é" * 127)
    longest.mkdir()
    assert len(model_folder(str(longest), True).name.encode()) < 200


@pytest.mark.parametrize(
    "words",
    [
        ("scan", "pocket", "--seed", PAST_64_BITS),
        ("scan", "pocket", "--random-init", "--seed", str(-(2**64))),
        ("paths", "pocket", "A text.", "--seed", PAST_64_BITS),
        ("compile", "permutation", "-n", "4", "--seed", PAST_64_BITS),
    ],
    ids=" ".join,
)
def test_seeds_that_no_generator_accepts_are_refused(here: Path, words: tuple[str, ...]) -> None:
    assert "seed of" in refused(*words)
    assert not list(here.iterdir())


@pytest.mark.parametrize("seed", [-(2**63) - 1, 2**64, 2**200])
def test_seeds_in_python(seed: int) -> None:
    for ask in (
        lambda: attnscope.scan("pocket", seed=seed),
        lambda: attnscope.paths("pocket", "A text.", seed=seed),
        lambda: attnscope.collapse("pocket", random_init=True, seeds=[seed]),
        lambda: attnscope.collapse("bert-base", random_init=True, seeds=[seed]),
        lambda: attnscope.compile([(0, 0, 1.0)], seed=seed),
        lambda: attnscope.generate("permutation", 4, 1, seed=seed),
    ):
        with pytest.raises(RefusalError, match="seed of"):
            ask()


def test_width_beyond_memory_is_refused(here: Path) -> None:
    sentence = refused("compile", "permutation", "-n", "8", "--width", "999999999999")
    assert "128,000.0 GB" in sentence
    assert "--width of 4,194,304" in sentence
    assert not list(here.iterdir())


def test_a_model_of_zeros_has_paths_of_zero(tmp_path: Path) -> None:
    model = tiny_llama()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    report = attnscope.paths(model, "A text.", tokenizer=byte_tokenizer(), draws=0)
    assert report.total == 0
    assert report.write_page(tmp_path / "paths.html").stat().st_size > 0
    report.chart()
