"""The page, the sentences, the summary and the charts of a decomposition into paths."""

from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import altair as alt
import pytest
from rich.console import Console

from attnscope.commands.paths.chart import (
    chart,
    head_length_rows,
    length_chart,
    length_rows,
    player_rows,
    reconstruction_rows,
    value_grid,
    value_rows,
)
from attnscope.commands.paths.page import render
from attnscope.commands.paths.record import Goal, PathReport
from attnscope.commands.paths.vocabulary import chain_words, seen_lengths
from attnscope.commands.paths.words import length_lines, sentences, verdict
from attnscope.core.words import numeral
from attnscope.reports.export import save
from attnscope.reports.terminal import print_record
from tests.reports.sample_paths import sample_paths

NASTY = "<script>document.title='taken'</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def report() -> PathReport:
    return sample_paths()


def test_sentences_say_what_the_numbers_say(report: PathReport) -> None:
    said = sentences(report)
    whole = " ".join(said)
    assert said[0] == verdict(report).sentence
    assert said[0].startswith("Next token ' Rome' (80%). ")
    assert said[1].startswith("The logit of ' Rome' after the last token is ")
    for length in (0, 1, 2):
        share = report.lengths[length].value / report.value
        assert f"{100 * share:.0f}% " in said[1]
    assert "Paths through at most 2 heads suffice to predict ' Rome'" in whole
    assert "With at most one head the model would say ' the'" in whole
    assert "Without paths through one head the model would say ' also'." in whole
    assert "80% come from paths through no head" in whole
    assert "Paths through 2 heads or more, added up by length, hardly differ between tokens." in whole
    assert "Paths through one head cancel" in whole
    assert "MLPs" not in whole  # the game with MLPs as players, which is named beside its chart
    assert "float64" in said[-1]
    assert len(set(said)) == len(said)


def test_sentences_do_without_what_is_not_there(report: PathReport) -> None:
    """States instead of tokens, one token, no MLPs, no energies."""
    rows = tuple(
        replace(
            row,
            residual=None,
            residual_share=None,
            energy=None,
            energy_error=None,
            up_to=replace(row.up_to, predicted=None, probability=None, target_probability=None, loss=None),
            without=replace(row.without, predicted=None, probability=None, target_probability=None, loss=None),
        )
        for row in report.lengths
    )
    bare = replace(report, output="states", lengths=rows, players=None, edges=None, whole_residual=None, draws=0)
    said = " ".join(sentences(bare)[1:])
    assert "give the model's state at token 4 within a tenth" in said
    for word in ("says", "suffice", "differences", "cancel", "MLP"):
        assert word not in said
    assert "distance from the model's own output" in {row["quantity"] for row in reconstruction_rows(bare)}
    assert length_lines(bare)[0] == ("length", "paths", "adds", "mean path", "from constants", "sum so far")
    assert "Single paths" in render(bare)


def test_long_tails_of_lengths_are_one_line() -> None:
    report = sample_paths(layers=30)
    shown = seen_lengths(report)
    assert 4 < shown < 12
    lines = length_lines(report)
    assert len(lines) == shown + 2
    assert lines[-1][0] == f"{shown}–30"
    folded, rest = dict(zip(lines[0], lines[-1], strict=True)), report.lengths[shown:]
    assert folded["mean path"] == f"+{numeral(sum(r.stream for r in rest) / sum(r.paths for r in rest))}"
    assert folded["residual"].split(" to ") == [numeral(float(f"{rest[i].residual:.2g}")) for i in (-1, 0)]
    assert folded["says without"] == "' Rome'"
    assert f"Lengths from {shown} on add too little to be visible" in render(report)
    assert {row["length"] for row in length_rows(report)} == set(range(shown))


def test_charts_show_every_number(report: PathReport) -> None:
    values = {(row["length"], row["source"]): row["value"] for row in length_rows(report)}
    assert values[1, "from the input"] == report.lengths[1].stream
    assert values[1, "from constants"] == report.lengths[1].constants
    assert len(value_rows(report)) == 24
    assert value_rows(report)[5]["value"] == report.head_values[1][1]
    cells = {(row["head"], row["length"]): row["value"] for row in head_length_rows(report)}
    for (name, length), value in cells.items():
        block, head = map(int, re.findall(r"\d+", name))
        assert value == report.head_lengths[block][head][length]
    assert {row["player"] for row in player_rows(report)} == {"heads", "MLP"}
    losses = [row["value"] for row in reconstruction_rows(report) if row["quantity"] == "next-token loss"]
    assert losses == [row.up_to.loss for row in report.lengths[: seen_lengths(report)]]


def test_a_source_without_anything_has_no_bar() -> None:
    sample = sample_paths()
    report = replace(sample, lengths=tuple(replace(row, constants=0.0) for row in sample.lengths))
    assert {row["source"] for row in length_rows(report)} == {"from the input"}
    assert length_chart(report).to_dict()["layer"][0]["encoding"]["color"]["legend"] is None
    assert length_chart(sample).to_dict()["layer"][0]["encoding"]["color"]["legend"]["values"] == [
        "from the input",
        "from constants",
    ]


def test_zero_is_the_middle_of_the_colours(report: PathReport) -> None:
    low, high = value_grid(report).to_dict()["encoding"]["color"]["scale"]["domain"]
    assert low == -high
    assert high == max(abs(value) for row in report.head_values for value in row)


def test_all_charts_fit_in_one_picture(report: PathReport, tmp_path: Path) -> None:
    assert isinstance(chart(report), alt.VConcatChart)
    path = save(report.chart(), tmp_path / "paths.png", scale=1.0)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_the_page_escapes_what_others_wrote(report: PathReport) -> None:
    nasty = replace(
        report,
        model=NASTY,
        target=f"logit of '{NASTY}'",
        goal=Goal("logit", NASTY),
        tokens=(NASTY, *report.tokens[1:]),
        top=(replace(report.top[0], token=NASTY),),
        notes=(NASTY,),
    )
    page = render(nasty)
    assert "<script>document" not in page
    assert "<img" not in page
    assert len(re.findall("<script", page)) == 2  # specifications of charts, and scripts of the shell
    assert "default-src &#39;none&#39;; script-src &#39;sha256-" in page
    assert page == render(nasty)


def test_the_page_says_nothing_twice(report: PathReport) -> None:
    page = render(report)
    for sentence in sentences(report):
        start = re.sub(r"[-+][\d.e-]+.*", "", sentence).replace("'", "&#39;")[:60]
        assert page.count(start) == 1, start


def test_two_games_are_not_mixed_up(report: PathReport) -> None:
    """Values of heads are the same everywhere; values with MLPs as players are only at their chart."""
    assert report.players is not None
    beside_mlps = numeral(sum(map(sum, report.players.heads)))
    page = render(report)
    assert page.count(beside_mlps) == 1
    caption = page[page.index("Another game") :].split("</figcaption>")[0]
    assert beside_mlps in caption
    assert "only heads are players" in caption
    assert not any(beside_mlps in sentence for sentence in sentences(report))


def test_chains_are_read_from_left_to_right(report: PathReport) -> None:
    words = chain_words(report.top[2])
    assert words == "' capital' (token 1) → block 0 head 2 → block 3 head 1 → output"


def printed(report: PathReport, verbose: bool = False) -> str:
    out = StringIO()
    files = {"Report": Path("paths.html")}
    print_record(report, files=files, console=Console(file=out, width=80), verbose=verbose)
    return out.getvalue()


@pytest.mark.parametrize("verbose", [False, True])
def test_the_summary_fits_eighty_columns(report: PathReport, verbose: bool) -> None:
    text = printed(report, verbose)
    assert max(map(len, text.splitlines())) <= 80
    for word in ("Next token ' Rome'", "Shapley", "' Italy' (token 3) → block 3 head 1 → output", "paths.html"):
        assert word in text
    assert ("By length" in text) == verbose
    assert ("MLPs are then worth" in " ".join(text.split())) == verbose


@pytest.mark.parametrize(
    "changes", [{}, {"layers": 40, "heads": 40}, {"layers": 1, "heads": 1}, {"notes": ("a " * 60,)}]
)
def test_the_summary_is_short(changes: dict[str, Any]) -> None:
    report = sample_paths(**changes)
    assert len(printed(replace(report, top=report.top * 9)).splitlines()) <= 30


def test_a_terminal_name_moves_no_cursor(report: PathReport) -> None:
    out = StringIO()
    print_record(replace(report, model="\x1b[2Jgone [red]x"), console=Console(file=out, width=80))
    assert "\x1b" not in out.getvalue()
    assert "[red]x" in out.getvalue()
