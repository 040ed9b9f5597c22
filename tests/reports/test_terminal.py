from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from attnscope.commands.scan.diagnose import Thresholds, diagnose
from attnscope.commands.scan.survey.survey import Survey
from attnscope.commands.scan.terminal import sparkline
from attnscope.commands.scan.words import headlines
from attnscope.reports.record import verdict
from attnscope.reports.terminal import BLOCKS, print_record
from tests.commands.scan.survey.sample import sample_survey
from tests.reports.charts.sample_model import encoder_decoder, made_survey, observations


def printed(encoding: str = "utf-8", width: int = 80, **options: object) -> tuple[Console, io.BytesIO]:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, write_through=True)
    return Console(file=file, width=width, **options), raw  # type: ignore[arg-type]


def test_summary_fits_eighty_columns_without_colour() -> None:
    survey = made_survey(observations(broken=((3, 2),)))
    console, raw = printed()
    files: dict[str, Path | None] = {"Report": Path("out/report.html")}
    print_record(survey, findings=diagnose(survey), files=files, console=console, verbose=True)
    text = raw.getvalue().decode()
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    for words in (
        "made/up-model",
        "12 sequences",
        "30 × 9",
        "Something is wrong: NaN or infinity first appears in the attention of block 3",
        "Sink mass",
        "out/report.html",
    ):
        assert words in text
    assert text.index("NaN or infinity") < text.index("\nto know  ") < text.index("\nnote     ")
    assert text.index("Relative residual") < text.index("Entropy")


def screen_of(survey: Survey, **options: Any) -> str:
    console, raw = printed()
    files: dict[str, Path | None] = {"Report": Path("out/report.html"), "Survey": Path("out/survey.json")}
    print_record(survey, files=files, console=console, **options)
    return raw.getvalue().decode()


def test_a_screen_is_the_verdict_the_findings_and_the_link() -> None:
    survey = sample_survey()
    first, *others = diagnose(survey)
    text = " ".join(screen_of(survey).split())
    assert text.startswith(verdict(survey).sentence)
    assert text.count(first.sentence) == 1, "the worst one is the verdict, and not listed again"
    places = [text.index(one.sentence) for one in others]
    assert places == sorted(places)
    assert text.index(others[-1].sentence) < text.index("Report out/report.html")
    assert "info" not in text
    assert "Effective rank" not in text
    assert "more in the report" not in text


@pytest.mark.parametrize("many", [0, 1, 5, 40])
def test_at_most_thirty_lines_whatever_was_found(many: int) -> None:
    survey = made_survey(observations(broken=((3, 2),)))
    survey.provenance["not_measured"] = {name: f"reason {number}" for number, name in enumerate("abcdefgh")}
    findings = [replace(diagnose(survey)[0], sentence=f"Number {number}: {'words ' * 30}.") for number in range(many)]
    text = screen_of(survey, findings=findings)
    assert len(text.splitlines()) <= 30
    assert max(map(len, text.splitlines())) <= 80
    shown = len(re.findall(r"[Nn]umber \d+:", text))
    assert shown == many or f"{many - shown} more in the report, or with --verbose." in text
    assert shown >= min(many, 2)
    assert "requested measures are missing" in " ".join(text.split())
    whole = screen_of(survey, findings=findings, verbose=True)
    assert len(re.findall(r"[Nn]umber \d+:", whole)) == many
    assert "h was not measured: reason 7." in whole


def test_headlines_obey_thresholds() -> None:
    survey = sample_survey()
    for limit, share in ((0.9, "0%"), (0.5, "33%")):
        console, raw = printed()
        chosen = Thresholds(sink_mass=limit)
        print_record(survey, findings=diagnose(survey, chosen), console=console, thresholds=chosen, verbose=True)
        (line,) = [words for words in raw.getvalue().decode().splitlines() if words.startswith("Heads that sink")]
        assert line.split()[3:7] == [share, "put", "over", str(limit)]


def test_sinks_of_short_sequences_are_held_against_uniform_attention() -> None:
    survey = sample_survey(tokens=8)  # means up to 0.6, and uniform attention gives 0.34
    (sinks,) = [line for line in headlines(survey, survey.table()) if line.label == "Heads that sink"]
    assert (sinks.value, sinks.note) == ("0%", "put over 0.679 of their mass on the first token")


def test_what_could_not_be_measured_is_said() -> None:
    survey = sample_survey(2, 2)
    survey.provenance["not_measured"] = {"\x1b[2Jcontraction": "values not found", "spectral_gap": ["no", "no\nhead."]}
    console, raw = printed()
    print_record(survey, findings=(), files={"Report": None}, console=console)
    text = raw.getvalue().decode()
    assert "�[2Jcontraction was not measured: values not found." in text
    assert "spectral_gap was not measured: no; no head." in text


def test_a_long_path_is_never_broken() -> None:
    path = Path("a" * 60) / ("b" * 60) / "report.html"
    console, raw = printed()
    print_record(sample_survey(), findings=(), files={"Report": path}, console=console)
    assert str(path) in raw.getvalue().decode()
    assert "Healthy: nothing is wrong." in raw.getvalue().decode()


def test_a_terminal_that_knows_only_ascii_gets_ascii() -> None:
    console, raw = printed("ascii")
    survey = sample_survey(name="modèle")
    print_record(survey, findings=diagnose(survey), files={"Report": None}, console=console, verbose=True)
    text = raw.getvalue().decode("ascii")
    assert "4 x 3" in text
    assert "mod?le" in text


def test_names_are_neither_markup_nor_control_characters() -> None:
    console, raw = printed(force_terminal=True, color_system=None)
    print_record(
        sample_survey(name="[red]x[/red]\x1b]0;title\x07"), findings=(), files={"Report": None}, console=console
    )
    text = raw.getvalue().decode()
    assert "[red]x[/red]" in text
    assert "\x1b]0" not in text


def test_stacks_are_named_where_there_are_several() -> None:
    console, raw = printed(width=120)
    survey = encoder_decoder()
    print_record(survey, findings=(), files={"Report": None}, console=console, verbose=True)
    text = raw.getvalue().decode()
    assert "Blocks × heads (encoder)" in text
    assert text.count("Entropy  ") == 3
    assert text.index("decoder, self-attention") < text.index("decoder, cross-attention")


def test_files_of_a_folder_are_counted() -> None:
    survey = sample_survey()
    survey.provenance["corpus"] |= {"files_read": 12, "files_skipped": 1}
    console, raw = printed()
    print_record(survey, findings=(), files={"Report": None}, console=console)
    assert "sample text, 12 files read and 1 skipped, 16 sequences" in raw.getvalue().decode()


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], BLOCKS),
        ([5.0, 5.0, 5.0], "▁▁▁"),
        ([0.0, float("nan"), 1.0], "▁?█"),
        ([float("nan")], "?"),
        ([], ""),
    ],
)
def test_sparklines(values: list[float], line: str) -> None:
    assert sparkline(values) == line


def test_long_sparklines_are_averaged_and_logarithms_taken() -> None:
    assert sparkline(map(float, range(96)), width=8) == BLOCKS
    assert sparkline([1.0, 10.0, 100.0], log=True) == "▁▅█"
