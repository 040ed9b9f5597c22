"""`attnscope treat` on the command line: screen, folder, JSON, and refusals in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import attnscope
from attnscope.cli.main import app
from attnscope.commands.treat.record import Treatment
from tests.commands.treat.patients import TEXT, patient

STEPS = ["--steps", "2"]
QUICK = ["--samples", "6", "--max-tokens", "16", "--batch-size", "2"]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A model and a corpus as files."""
    folder = tmp_path_factory.mktemp("given")
    loaded = patient()
    loaded.model.save_pretrained(folder / "model")  # type: ignore[operator]
    loaded.tokenizer.save_pretrained(folder / "model")  # type: ignore[union-attr]
    (folder / "text.txt").write_text("\n".join(TEXT.replace("Alice", f"Alice {n}") for n in range(12)))
    return [str(folder / "model"), str(folder / "text.txt")]


def test_treat_writes_a_folder_whose_model_other_commands_load(given: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    typed = ["treat", *given, "--remedy", "gated_output", *STEPS, *QUICK, "--out", str(out)]
    answer = CliRunner().invoke(app, typed, catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    lines = answer.stdout.strip().splitlines()
    assert len(lines) <= 30
    verdict = " ".join(" ".join(lines[:2]).split())  # this model was never trained
    assert "gated_output had no effect beyond chance (a loss no better than token frequencies: there in" in verdict
    assert sorted(path.name for path in out.iterdir()) == ["model", "treatment.html", "treatment.json"]
    treatment = attnscope.load(out / "treatment.json")
    assert isinstance(treatment, Treatment)
    assert treatment.remedy.name == "gated_output"
    assert "<table" in treatment._repr_html_() or "<svg" in treatment._repr_html_() or "<div" in treatment._repr_html_()
    assert treatment.chart("loss").to_dict()
    measured = attnscope.scan(out / "model", given[1], samples=2, max_tokens=16, measures=["entropy"])
    assert measured.provenance["model"]["treated"]["variant"] == "gated_output"
    page = attnscope.report(out / "treatment.json", tmp_path / "again.html")
    assert Path(page).read_text() == (out / "treatment.html").read_text()


def test_json_is_json_and_nothing_else(given: list[str], tmp_path: Path) -> None:
    typed = ["treat", *given, "--remedy", "qk_clip", "--json", *QUICK, "--out", str(tmp_path / "out")]
    answer = CliRunner().invoke(app, typed, catch_exceptions=False)
    told = json.loads(answer.stdout)
    assert told["loss"]["mean"] == 0  # no logit is near 100
    assert {one["judgement"] for one in told["outcomes"]} <= {"no effect"}


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["--remedy", "gated_outptu"], "Did you mean 'gated_output'"),
        (["--remedy", "gated_output", "--blocks", "9"], "not in block 9"),
        (["--remedy", "gated_output", "--blocks", "two"], "does not name blocks"),
        (["--remedy", "gated_output", "--set", "how"], "is not a setting"),
        (["--remedy", "prune", "--heads", "99"], "99 cannot be removed"),
    ],
)
def test_bad_input_ends_with_one_sentence(given: list[str], tmp_path: Path, typed: list[str], words: str) -> None:
    from attnscope.core.errors import RefusalError

    answer = CliRunner().invoke(app, ["treat", *given, *typed, *QUICK, "--out", str(tmp_path / "out")])
    assert isinstance(answer.exception, RefusalError)
    assert words in answer.exception.sentence
    assert not list(tmp_path.rglob("*.json"))


def test_unfinished_training_is_mentioned_and_survives_a_typo(given: list[str], tmp_path: Path) -> None:
    partial = tmp_path / "out" / "treatment.partial"
    typed = ["treat", *given, "--remedy", "gated_output", "--blocks", "9", *QUICK, "--out", str(tmp_path / "out")]
    nothing = CliRunner().invoke(app, [*typed, "--resume"])
    assert "there is no interrupted work in" in nothing.stderr
    partial.mkdir(parents=True)
    (partial / "control.safetensors").write_bytes(b"kept")
    replaced = CliRunner().invoke(app, typed)
    assert "will be replaced; --resume would continue it" in replaced.stderr
    assert (partial / "control.safetensors").read_bytes() == b"kept"
    going_on = CliRunner().invoke(app, [*typed, "--resume"])
    assert "interrupted work in" not in going_on.stderr


def test_help_explains_samples_and_card_explains_settings() -> None:
    told = " ".join(CliRunner().invoke(app, ["treat", "--help"], terminal_width=200).stdout.split())
    assert "Maximum number of held-out sequences to measure on" in told
    card = CliRunner().invoke(app, ["variants", "gated_output"], terminal_width=200).stdout
    assert "headwise" in card
    assert "default: elementwise" in " ".join(card.split())
