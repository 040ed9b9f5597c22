"""`attnscope compare` on synthetic surveys: several surveys, --fail-on, refusals."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import attnscope
from attnscope.cli.main import app
from attnscope.commands.scan.survey.builder import SurveyBuilder
from attnscope.core.errors import RefusalError
from attnscope.hf.loading.load import load
from tests.commands.compare.made import made, with_trial
from tests.commands.scan.survey.sample import CARDS, sample_provenance

TOP = math.lgamma(65) / 64  # nats: uniform attention over 64 tokens under a causal mask


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write surveys `few`, `some` and `most`: ten blocks of four heads, of which 4, 6 and 24 are uniform."""
    made = tmp_path_factory.mktemp("surveys")
    for name, number in (("few", 4), ("some", 6), ("most", 24)):
        flat = [TOP] * number + [1.5] * (40 - number)
        ledger = SurveyBuilder(CARDS)
        for layer in range(10):
            row = np.array([flat[4 * layer : 4 * layer + 4]])
            ledger.observe("entropy", "value", "decoder", "self", layer, row)
        (made / name).mkdir()
        ledger.survey(sample_provenance(10, 4, name=name)).save(made / name / "survey.json")
    return made


def run(folder: Path, *words: str) -> tuple[int, str]:
    given = [str(folder / word) if word and (folder / word).is_dir() else word for word in words]
    done = CliRunner().invoke(app, ["compare", *given])
    if isinstance(done.exception, RefusalError):
        raise done.exception
    return done.exit_code, done.output


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("few", "most"), 0),  # no gate
        (("few", "most", "--fail-on", "to_know"), 1),
        (("few", "most", "--fail-on", "wrong"), 0),
        (("few", "some", "--fail-on", "to_know"), 0),  # worse, and still a note
        (("few", "some", "--fail-on", "note"), 1),
        (("most", "few", "--fail-on", "note"), 0),  # better
        (("most", "most", "--fail-on", "note"), 0),  # as bad as before
        (("few", "some", "most", "--fail-on", "to_know"), 1),  # any of them
        (("most", "few", "some", "--fail-on", "note"), 0),
        (("few", "most", "--fail-on", "to_know", "--threshold", "uniform_entropy=1"), 0),
        (("few", "most", "--fail-on", "to_know", "--json"), 1),
    ],
)
def test_fail_on_exits_with_1_for_new_or_worse_findings(folder: Path, words: tuple[str, ...], code: int) -> None:
    assert run(folder, *words)[0] == code


def test_fail_on_still_writes_the_page_and_says_why(folder: Path, tmp_path: Path) -> None:
    page, record = tmp_path / "c.html", tmp_path / "c.json"
    code, text = run(folder, "few", "most", "--fail-on", "to_know", "--out", str(page), "--save", str(record))
    assert code == 1
    assert "changed  Uniform heads 4 → 24" in text
    assert "Uniform heads 4 → 24" in page.read_text()
    assert [pair.trend for pair in attnscope.load(record).findings] == ["worse"]  # type: ignore[attr-defined]


def test_fail_on_exits_with_1_if_the_loss_is_worse(tmp_path: Path) -> None:
    base = (4.5, 4.6, 4.7, 4.4, 4.6, 4.5, 4.8, 4.6)
    for name, rise in (("one", 0.0), ("two", 2.0)):
        (tmp_path / name).mkdir()
        with_trial(made(), tuple(loss + rise for loss in base)).save(tmp_path / name / "survey.json")
    code, text = run(tmp_path, "one", "two", "--fail-on", "wrong")
    assert code == 1
    assert "Worse: the loss rises by 2.00 nats per token" in text
    assert run(tmp_path, "one", "two")[0] == 0
    assert run(tmp_path, "two", "one", "--fail-on", "note")[0] == 0


def test_models_are_scanned_and_compared(tmp_path: Path) -> None:
    loaded: Any = load("pocket")
    loaded.model.model.layers[3].mlp.down_proj.weight.data[17] *= 80
    loaded.model.save_pretrained(tmp_path / "broken")
    loaded.tokenizer.save_pretrained(tmp_path / "broken")
    out = tmp_path / "c.html"
    code, text = run(tmp_path, "pocket", "broken", "--samples", "2", "--max-tokens", "64", "--out", str(out))
    assert code == 0
    assert "model.layers.3.mlp.down_proj.weight" in text
    assert "row 17 ×80" in out.read_text()
    survey = tmp_path / "survey"
    survey.mkdir()
    attnscope.scan("pocket", samples=2, max_tokens=64).save(survey / "survey.json")
    same = " ".join(run(tmp_path, "survey", "pocket")[1].split())
    assert "The loss is the same to the last digit: 3.81 nats per token. Every number is the same." in same


def test_many_surveys(folder: Path) -> None:
    code, text = run(folder, "few", "some", "most")
    assert code == 0
    assert "Nothing that is wrong is new (the loss is unknown): 2 findings changed." in " ".join(text.split())
    said = json.loads(run(folder, "few", "some", "most", "--json")[1])
    assert [(pair["survey"], pair["status"]) for pair in said["findings"]] == [(2, "changed"), (1, "changed")]
    assert len(said["surveys"]) == 3
    assert len(run(folder, "few", "most", "--verbose")[1]) > len(run(folder, "few", "most")[1])


def test_one_survey_is_refused(folder: Path) -> None:
    with pytest.raises(RefusalError, match="needs at least two models or surveys: name another one"):
        run(folder, "few")


def test_empty_and_unreadable_names_are_refused_wherever_they_stand(folder: Path) -> None:
    for words in (("few", ""), ("", "few"), ("few", "some", "")):
        with pytest.raises(RefusalError, match="is empty: give a file name, a folder, or 'pocket'"):
            run(folder, *words)
    with pytest.raises(RefusalError, match="There is no file"):
        run(folder, "few", "some", "nothing.json")
