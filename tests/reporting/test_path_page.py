"""The page, the sentences, the summary and the charts of a decomposition into paths; the page in a real Chromium."""

from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Literal

import altair as alt
import pytest
from playwright.sync_api import Browser
from rich.console import Console

from attnscope.charts.export import save
from attnscope.charts.path_panels import (
    head_length_rows,
    length_chart,
    length_rows,
    path_panels,
    player_rows,
    reconstruction_rows,
    seen_lengths,
    value_grid,
    value_rows,
)
from attnscope.core.numerals import numeral
from attnscope.records.paths import Goal, PathReport
from attnscope.reporting.paths.page import render
from attnscope.reporting.paths.vocabulary import chain_words
from attnscope.reporting.paths.words import length_lines, sentences
from attnscope.reporting.terminal import print_record
from tests.reporting.sample_paths import sample_paths

NASTY = "<script>document.title='taken'</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def report() -> PathReport:
    return sample_paths()


def test_sentences_say_what_the_numbers_say(report: PathReport) -> None:
    said = sentences(report)
    whole = " ".join(said)
    sums = [row.up_to.value for row in report.lengths]
    half = next(k for k in range(7) if all(abs(s - report.value) <= report.value / 2 for s in sums[k:]))
    assert half == 1
    assert said[0].startswith("The logit of ' Rome' after the last token is ")
    assert "Half of it or more comes from paths through at most one head" in said[0]
    assert "Paths through at most 2 heads suffice to predict ' Rome'" in whole
    assert "With at most one head the model would say ' the'" in whole
    assert "Without paths through one head the model would say ' also'." in whole
    assert "' Italy' (token 3) → layer 3 head 1 → output: +1.5 (from that token alone: +1.4)." in whole
    assert "80% from paths through no head" in whole
    assert "Sums of paths through 2 heads or more are nearly rank one" in whole
    assert "Paths through one head cancel" in whole
    best = max((v, layer, h) for layer, row in enumerate(report.head_values) for h, v in enumerate(row))
    assert f"Head {best[2]} of layer {best[1]} is worth most" in whole
    assert "MLPs are worth" in whole
    assert "float64" in said[-1]


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
    said = " ".join(sentences(bare))
    assert "give the model's state at token 4 to within a tenth" in said
    for word in ("says", "suffice", "rank one", "cancel", "MLP"):
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
    assert f"Lengths from {shown} on add too little to be seen" in render(report)
    assert {row["length"] for row in length_rows(report)} == set(range(shown))


def test_charts_show_every_number(report: PathReport) -> None:
    values = {(row["length"], row["source"]): row["value"] for row in length_rows(report)}
    assert values[1, "from the input"] == report.lengths[1].stream
    assert values[1, "from constants"] == report.lengths[1].constants
    assert len(value_rows(report)) == 24
    assert value_rows(report)[5]["value"] == report.head_values[1][1]
    cells = {(row["head"], row["length"]): row["value"] for row in head_length_rows(report)}
    for (name, length), value in cells.items():
        layer, head = map(int, re.findall(r"\d+", name))
        assert value == report.head_lengths[layer][head][length]
    assert {row["player"] for row in player_rows(report)} == {"heads", "MLP"}
    losses = [row["value"] for row in reconstruction_rows(report) if row["quantity"] == "next-token loss"]
    assert losses == [row.up_to.loss for row in report.lengths[: seen_lengths(report)]]


def test_a_source_without_anything_has_no_bar() -> None:
    sample = sample_paths()
    report = replace(sample, lengths=tuple(replace(row, constants=0.0) for row in sample.lengths))
    assert {row["source"] for row in length_rows(report)} == {"from the input"}
    assert "color" not in length_chart(report).to_dict()["layer"][0]["encoding"]


def test_zero_is_the_middle_of_the_colours(report: PathReport) -> None:
    low, high = value_grid(report).to_dict()["encoding"]["color"]["scale"]["domain"]
    assert low == -high
    assert high == max(abs(value) for row in report.head_values for value in row)


def test_all_charts_fit_in_one_picture(report: PathReport, tmp_path: Path) -> None:
    assert isinstance(path_panels(report), alt.VConcatChart)
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
    assert "<script" not in page
    assert "<img" not in page
    assert "default-src &#39;none&#39;; style-src &#39;sha256-" in page
    assert "script-src" not in page  # falls back to none
    assert page == render(nasty)


def test_chains_are_read_from_left_to_right(report: PathReport) -> None:
    words = chain_words(report.top[2])
    assert words == "' capital' (token 1) → layer 0 head 2 → layer 3 head 1 → output"


def test_the_summary_fits_eighty_columns(report: PathReport) -> None:
    out = StringIO()
    print_record(report, files={"Report": Path("paths.html")}, console=Console(file=out, width=80))
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    for word in ("By length", "Shapley", "' Italy' (token 3) → layer 3 head 1 → output", "paths.html", "without"):
        assert word in text


def test_a_terminal_name_moves_no_cursor(report: PathReport) -> None:
    out = StringIO()
    print_record(replace(report, model="\x1b[2Jgone [red]x"), console=Console(file=out, width=80))
    assert "\x1b" not in out.getvalue()
    assert "[red]x" in out.getvalue()


@pytest.mark.browser
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_page_opens_without_a_word(
    browser: Browser, tmp_path: Path, width: int, scheme: Literal["light", "dark"]
) -> None:
    report = replace(sample_paths(), model=NASTY)
    path = report.write_page(tmp_path / "paths.html")
    complaints: list[str] = []
    page = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme).new_page()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: complaints.append(request.url) if "paths.html" not in request.url
            and not request.url.startswith("data:") else None)  # fmt: skip
    page.goto(path.as_uri())
    assert page.title() == f"Paths of {NASTY} · attnscope"
    assert page.locator("svg.signed rect").count() == 24 + len(head_length_rows(report))
    assert page.locator(".chains tbody tr").count() == 3
    assert page.locator(".tokens [aria-current]").inner_text() == " is"
    colour = page.locator("svg.signed rect").first.evaluate("e => getComputedStyle(e).fill")
    assert colour.startswith("rgb")
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    page.context.close()
    assert complaints == []
