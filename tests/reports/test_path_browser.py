"""The page of a decomposition into paths as a person sees it, in a real Chromium."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, FloatRect, Page, expect

from attnscope.commands.paths.chart import head_length_rows
from attnscope.commands.paths.record import Chain, PathReport
from tests.reports import looks
from tests.reports.sample_paths import sample_paths, with_effects

pytestmark = pytest.mark.browser
NASTY = "<script>document.title='taken'</script><img src=x onerror=alert(1)>"
TEXT = tuple(f" word{n}" for n in range(30))
SIZES = {"2 x 2": (2, 2), "6 x 4": (6, 4), "12 x 12": (12, 12), "30 x 9": (30, 9)}


def long_report() -> PathReport:
    """Write a report of thirty words, with paths of either sign and different sizes from several rows of them."""
    ends = [(29, ()), (3, ((3, 1),)), (12, ((0, 2),)), (28, ((5, 0),)), (12, ((0, 2), (3, 1))), (0, ((1, 1), (2, 2)))]
    chains = [Chain(2.0 * (-0.7) ** n, heads, at, TEXT[at], 1.5 * (-0.7) ** n) for n, (at, heads) in enumerate(ends)]
    report = with_effects(sample_paths())
    return replace(report, tokens=TEXT, position=29, top=tuple(chains), text="".join(TEXT))


def written(report: PathReport, folder: Path) -> Path:
    return report.write_page(folder / "paths.html")


@pytest.fixture(scope="module")
def long_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(long_report(), tmp_path_factory.mktemp("long"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", looks.WIDTHS)
def test_the_page_looks_right(browser: Browser, long_page: Path, width: int, scheme: Literal["light", "dark"]) -> None:
    with looks.opened(browser, long_page, width=width, scheme=scheme) as page:
        looks.assert_looks(page)
        looks.assert_charts_are_read_by_keys(page)


@pytest.mark.parametrize("size", SIZES)
def test_grids_of_every_size_fill_their_cards(browser: Browser, tmp_path: Path, size: str) -> None:
    blocks, heads = SIZES[size]
    path = written(sample_paths(layers=blocks, heads=heads), tmp_path)
    for width in (1280, 390):
        with looks.opened(browser, path, width=width) as page:
            looks.assert_looks(page)
            grid = page.locator("#values svg:visible")
            assert grid.locator("rect").count() == blocks * heads
            assert grid.locator(".axis").all_text_contents() == ["block", "head"]
            card, drawn = page.locator("#values").bounding_box(), grid.bounding_box()
            assert card is not None
            assert drawn is not None
            assert drawn["width"] >= 0.85 * card["width"]


def test_keys_reach_everything_and_paper_shows_everything(browser: Browser, long_page: Path) -> None:
    with looks.opened(browser, long_page) as page:
        looks.assert_tab_order(page)
        looks.assert_print_shows_all(page)


def test_what_others_wrote_stays_text(browser: Browser, tmp_path: Path) -> None:
    report = replace(sample_paths(), model=NASTY, tokens=(NASTY, *sample_paths().tokens[1:]), notes=(NASTY,))
    with looks.opened(browser, written(report, tmp_path)) as page:
        assert page.title() == f"Paths of {NASTY} · attnscope"
        assert page.locator("img").count() == 0
        assert page.locator("#values svg:visible rect").count() == 24
        assert page.locator("#by-length svg:visible rect").count() == len(head_length_rows(report))
        assert page.locator(".chains tbody tr").count() == 3


def box_of(page: Page, query: str) -> FloatRect:
    found = page.locator(query).bounding_box()
    assert found is not None, query
    return found


@pytest.mark.parametrize("width", looks.WIDTHS)
def test_arcs_end_at_their_tokens(browser: Browser, long_page: Path, width: int) -> None:
    """Both ends of every line are on the upper edge of the boxes of their tokens on the screen."""
    report = long_report()
    with looks.opened(browser, long_page, width=width) as page:
        asked = box_of(page, ".chip.asked:visible rect")
        assert page.locator(".chip.asked:visible .word").text_content() == " word29"
        ends: list[Any] = page.locator(".arc:visible").evaluate_all(
            """arcs => arcs.map(arc => {
              const at = (line, length) => {
                const spot = line.getPointAtLength(length).matrixTransform(line.getScreenCTM());
                return [spot.x + scrollX, spot.y + scrollY];
              };
              const lines = [...arc.querySelectorAll(".line")], last = lines.at(-1);
              return [at(lines[0], 0), at(last, lines.length > 1 ? 0 : last.getTotalLength())];
            })"""
        )
        assert len(ends) == len(report.top)
        for chain, (start, end) in zip(report.top, ends, strict=True):
            source = box_of(page, f'.chip[data-token="{chain.position}"]:visible rect')
            for (x, y), box in ((start, source), (end, asked)):
                assert box["x"] < x < box["x"] + box["width"]
                assert y == pytest.approx(box["y"], abs=1.5)


def test_arcs_are_read_under_the_pointer_and_by_keys(browser: Browser, long_page: Path) -> None:
    report = long_report()
    with looks.opened(browser, long_page) as page:
        for number, arc in enumerate(page.locator(".arc:visible").all(), 1):
            arc.locator("circle").first.hover()
            expect(page.locator("#tooltip")).to_contain_text(f"{number}. '{TEXT[report.top[number - 1].position]}'")
        plot = page.locator("#arcs .plot")
        plot.focus()
        page.keyboard.press("Home")
        page.keyboard.press("ArrowRight")
        expect(page.locator("#tooltip")).to_contain_text("2. ' word3' (token 3) → block 3 head 1 → output: -1.4")
        expect(page.locator(".arc.read:visible")).to_have_count(1)


def test_touch_shows_the_value_of_a_head(browser: Browser, tmp_path: Path) -> None:
    with looks.opened(browser, written(sample_paths(), tmp_path), width=390, has_touch=True) as page:
        page.locator("#values svg:visible rect").nth(5).tap()
        expect(page.locator("#tooltip")).to_contain_text("block 1 head 1: ")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_negative_bars_go_to_the_left_of_zero(
    browser: Browser, tmp_path: Path, scheme: Literal["light", "dark"]
) -> None:
    sample = long_report()
    rows = [replace(row, stream=row.stream * (-1) ** row.length, constants=0.0) for row in sample.lengths]
    report = replace(sample, lengths=tuple(rows))
    with looks.opened(browser, written(report, tmp_path), scheme=scheme) as page:
        zero = box_of(page, ".chains tbody tr:first-child .zero")["x"]
        colours = set()
        for place, chain in enumerate(report.top):
            query = f".chains tbody tr:nth-child({place + 1}) .share rect"
            bar = box_of(page, query)
            assert bar["width"] >= 1
            if chain.contribution < 0:
                assert bar["x"] + bar["width"] == pytest.approx(zero, abs=1)
            else:
                assert bar["x"] == pytest.approx(zero, abs=1)
            colours.add(page.locator(query).evaluate("e => getComputedStyle(e).fill"))
        assert len(colours) == 2
        assert page.evaluate("getComputedStyle(document.querySelector('.panel')).backgroundColor") not in colours
        bars = page.locator("#lengths figure").first.locator("svg:visible .mark-rect.role-mark path")
        boxes = [bar.bounding_box() for bar in bars.all()]
        first, second = boxes[0], boxes[1]  # lengths 0 and 1: one is positive, the other negative
        assert first is not None
        assert second is not None
        assert second["x"] + second["width"] == pytest.approx(first["x"], abs=1.5)
        assert second["y"] > first["y"]
