"""Charts in pages: shrinking the SVG keeps axis labels, and charts are readable on narrow screens."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import altair as alt
import pandas as pd
import pytest
from playwright.sync_api import Browser, Page

from attnscope.commands.paths.chart import length_chart
from attnscope.commands.paths.page import render
from attnscope.core.experiment import Figure, Point
from attnscope.reports.document import rows
from attnscope.reports.experiment_figure import experiment_figure
from attnscope.reports.export import drawing, slim
from attnscope.reports.page import environment, page_style, unbroken
from attnscope.reports.theme import specification
from tests.reports.sample_paths import sample_paths

MINUS = "\N{MINUS SIGN}"


def labels(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def test_places_are_rounded_and_words_are_not() -> None:
    svg = '<g transform="translate(1.23456,2)" aria-label="at 0.12345"><text x="0.98765">0.00512 d="0.12345"</text></g>'
    small = slim(svg)
    assert 'transform="translate(1.23,2)"' in small
    assert 'x="0.98"' in small
    assert 'aria-label="at 0.12345"' in small
    assert '>0.00512 d="0.12345"<' in small


@pytest.mark.parametrize("size", [1.0, 4e-2, 3e-3, 2e-4, 5e-7, 3e-12])
def test_no_two_ticks_of_an_axis_read_the_same(size: float) -> None:
    sample = sample_paths()
    lengths = [replace(row, stream=size * row.stream, constants=-size * row.constants) for row in sample.lengths]
    report = replace(sample, lengths=tuple(lengths))
    drawn_at = r'<text text-anchor="middle"[^>]*>([^<]*)</text>'  # under the horizontal axis, with its title
    words = re.findall(drawn_at, drawing(length_chart(report, width=326), "lengths"))
    ticks = [word for word in words if re.match(rf"[{MINUS}\d]", word)]
    assert len(ticks) > 2
    assert len(set(ticks)) == len(ticks)
    values = sorted(float(text.replace(MINUS, "-")) for text in ticks)
    assert values[-1] > 0.5 * 2.0 * size


def test_small_powers_of_ten_are_told_apart_on_a_logarithmic_axis() -> None:
    points = tuple(Point(x, x, "s") for x in (1e-4, 1e-3, 1e-2, 0.1, 1.0))
    figure = Figure("f", "t", "c", "x", "y", points, log=True, log_x=True)
    found = labels(drawing(experiment_figure(figure, title=False), "f"))
    for label in ("0.001", "0.01", "0.1", "1"):
        assert found.count(label) == 2  # on either axis
    assert "0.0001" in found
    assert "0.00" not in found


def test_clips_of_two_drawings_are_their_own_and_texts_are_left_alone() -> None:
    frame = pd.DataFrame([{"x": 0.0, "y": 0.0, "word": "clip1"}, {"x": 1.0, "y": 1.0, "word": "clip1"}])
    chart = alt.Chart(frame).mark_line(clip=True).encode(x="x:Q", y="y:Q", color="word:N")
    svg = drawing(chart, "one")
    clips = re.findall(r'<clipPath id="([^"]*)"', svg)
    assert clips
    assert all(re.fullmatch(r"one-clip\d+", name) and f"url(#{name})" in svg for name in clips)
    assert "clip1" in labels(svg)


def test_numbers_are_kept_whole_and_text_is_escaped() -> None:
    made = str(unbroken("about -5.082e-4 (p < 1e-12), <b>bold</b> 3.5 and 10^-14; -1,234.5."))
    assert re.findall(r'<span class="unbroken">([^<]*)</span>', made) == ["-5.082e-4", "1e-12", "10^-14", "-1,234.5"]
    assert "&lt;b&gt;" in made
    assert re.sub(r"</?span[^>]*>", "", made) == str(environment().from_string("{{ x }}").render(
        x="about -5.082e-4 (p < 1e-12), <b>bold</b> 3.5 and 10^-14; -1,234.5."))  # fmt: skip


def test_provenance_has_no_empty_row() -> None:
    data = {"model": {"name": "m", "unused": [], "note": "", "seed": None}, "kinds": ["a", "b"], "count": 0}
    assert rows(data) == [("model name", "m"), ("kinds", "a, b"), ("count", "0")]


def opened(browser: Browser, path: Path) -> Page:
    page = browser.new_context(viewport={"width": 400, "height": 900}).new_page()
    page.goto(path.as_uri())
    return page


@pytest.mark.browser
def test_a_narrow_screen_scrolls_and_breaks_no_number(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(render(sample_paths(layers=40, heads=40)), encoding="utf-8")
    page = opened(browser, path)
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    styles = page.locator("td.number").evaluate_all("cells => cells.map(cell => getComputedStyle(cell).whiteSpace)")
    assert set(styles) == {"nowrap"}
    narrow = "all => all.forEach(one => { one.style.width = '4rem' })"  # narrower than any number
    page.locator("#numbers .lead").evaluate_all(narrow)
    lines = page.locator("#numbers .unbroken").evaluate_all("spans => spans.map(span => span.getClientRects().length)")
    assert len(lines) > 1
    assert set(lines) == {1}
    table = page.locator("[aria-label='Table of lengths']")
    assert table.evaluate("e => e.scrollWidth > e.clientWidth")
    assert table.evaluate("e => getComputedStyle(e).backgroundAttachment") == "local, local, scroll, scroll, scroll"
    cell = page.locator("#values svg:visible rect").first.bounding_box()
    assert cell is not None
    assert cell["width"] >= 5  # forty blocks on a telephone
    page.context.close()


@pytest.mark.browser
def test_panels_side_by_side_keep_their_size_on_a_narrow_screen(browser: Browser, tmp_path: Path) -> None:
    points = tuple(Point(x, float(x), "s", name) for name in ("a", "b", "c") for x in range(3))
    svg = drawing(experiment_figure(Figure("f", "t", "c", "x", "y", points), title=False), "f")
    natural = float(re.findall(r'<svg width="([\d.]+)" class="broad"', svg)[0])
    path = tmp_path / "page.html"
    path.write_text(
        f"<style>{page_style(environment())}</style><figure class='panel'><p class='swipe'>hint</p>"
        f"<div class='plot scroll'>{svg}</div></figure>",
        encoding="utf-8",
    )
    page = opened(browser, path)
    box = page.locator("svg").bounding_box()
    assert box is not None
    assert box["width"] == pytest.approx(natural, abs=1)
    assert page.locator(".swipe").is_visible()
    page.set_viewport_size({"width": 1280, "height": 900})
    assert not page.locator(".swipe").is_visible()
    page.context.close()


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_does_not_know_become_null(number: float) -> None:
    made = specification({"data": {"values": [{"x": number, "y": 1.5}]}})
    assert made["data"]["values"] == [{"x": None, "y": 1.5}]
