"""The finding depends on the difference of the loss without and with BOS, and on its threshold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attnscope.commands.scan.diagnose import Thresholds, diagnose
from attnscope.commands.scan.survey.survey import Survey
from attnscope.commands.scan.words import corpus_words
from attnscope.core.finding import Finding
from attnscope.reports.terminal import print_record
from attnscope.reports.words import beginning_words
from tests.commands.scan.survey.sample import sample_survey

READ = {"begins": False, "token": "<bos>", "why": "the tokenizer does not add it"}


def begun(**bos: Any) -> Survey:
    survey = sample_survey()
    return replace(survey, provenance={**survey.provenance, "bos": {**READ, **bos}})


def found(survey: Survey, thresholds: Thresholds | None = None) -> list[Finding]:
    return [finding for finding in diagnose(survey, thresholds) if finding.kind == "missing_bos"]


def test_a_far_lower_loss_with_bos_is_a_finding() -> None:
    (finding,) = found(begun(loss_without=5.52, loss_with=3.16))
    assert finding.sentence == (
        "The model was clearly trained with BOS but is scanned without it: on the same tokens, its mean next-token "
        "loss is "
        "5.52, and 3.16 with <bos> put first."
    )
    assert "--bos yes" in finding.advice
    assert (finding.severity, finding.threshold_name) == ("wrong", "bos_loss")


@pytest.mark.parametrize(("with_bos", "speaks"), [(2.5, True), (2.51, False), (3.0, False), (3.6, False)])
def test_the_threshold_is_half_a_nat(with_bos: float, speaks: bool) -> None:
    assert bool(found(begun(loss_without=3.0, loss_with=with_bos))) == speaks


def test_the_threshold_can_be_changed() -> None:
    survey = begun(loss_without=3.2, loss_with=3.1)
    assert not found(survey)
    assert found(survey, Thresholds.parse(["bos_loss=0.05"]))


@pytest.mark.parametrize(
    "bos",
    [
        {},
        {"begins": True, "loss_without": 5.0, "loss_with": 3.0},
        {"loss_without": 5.0},
        {"loss_without": "5.0", "loss_with": 3.0},
    ],
)
def test_no_finding_without_both_losses(bos: dict[str, Any]) -> None:
    assert not found(begun(**bos))
    assert not found(sample_survey())


def test_merged_shards_keep_the_finding() -> None:
    one, two = begun(loss_without=5.5, loss_with=3.1), begun(loss_without=5.4, loss_with=3.2)
    (finding,) = found(one | two)
    assert finding.value > 2


def test_the_corpus_words_name_bos() -> None:
    assert corpus_words(begun())[-1] == "no BOS (the tokenizer does not add it)"
    assert corpus_words(begun(begins=True, why="the GGUF header asks for it"))[-1] == (
        "BOS first (the GGUF header asks for it)"
    )
    assert beginning_words({"bos": {"begins": [False, True]}}) == ("with and without BOS",)
    assert beginning_words({}) == ()


def test_the_page_and_the_terminal_say_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    survey = begun(loss_without=5.52, loss_with=3.16)
    page = survey.write_page(tmp_path / "report.html").read_text("utf-8")
    assert "no BOS (the tokenizer does not add it)" in page
    assert "is 5.52, and 3.16 with &lt;bos&gt; put first" in page
    print_record(survey)
    printed = " ".join(capsys.readouterr().out.split())
    assert "no BOS (the tokenizer does not add it)" in printed
    assert "--bos yes" in printed
