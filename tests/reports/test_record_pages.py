"""The appearance of the pages of records on a desktop and a phone, in both themes, by keyboard and in print.

To add a record, add a line to `PAGES`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import Browser

import attnscope
from attnscope.reports.record import Record
from tests.commands.samples import ALL, sample, sample_head_widths
from tests.reports import looks
from tests.reports.charts.sample_capacity import sample_capacity
from tests.reports.sample_collapse import collapse_of, sample_curves
from tests.reports.sample_explanation import sample_explanation, sample_scene
from tests.reports.sample_faithfulness import sample_faithfulness
from tests.reports.sample_logit_paths import sample_logit_paths
from tests.reports.sample_operator_map import sample_operator_map
from tests.reports.sample_reproduction import sample_reproduction
from tests.reports.sample_task_paths import sample_task_paths

pytestmark = pytest.mark.browser
PAGES: dict[str, Callable[[], Record]] = {
    "collapse": partial(collapse_of, sample_curves(), bounds=True),
    "collapse of many blocks": partial(collapse_of, sample_curves(96)),
    "compiled": lambda: attnscope.compile(attnscope.generate("window", 48, 3), width=4),
    "capacity": sample_capacity,
    "head widths": sample_head_widths,
    "explanation": sample_explanation,
    "explanation of two stacks": partial(sample_explanation, stacks=2, tokens=60),
    "explanation of a picture and a sound": sample_scene,
    "reproduction": sample_reproduction,
    "faithfulness": sample_faithfulness,
    "task of many prompts": sample_task_paths,
    "logit": sample_logit_paths,
    "operator map": sample_operator_map,
}


@pytest.fixture(scope="module", params=PAGES)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return attnscope.report(PAGES[request.param](), tmp_path_factory.mktemp("page") / "page.html")


@pytest.mark.parametrize("width", looks.WIDTHS)
def test_all_of_it_can_be_seen(path: Path, browser: Browser, width: int) -> None:
    """Themes have different colours but equal sizes, so sizes are checked in one theme and contrast in both."""
    with looks.opened(browser, path, width=width) as page:
        looks.assert_looks(page)
        page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
        looks.assert_looks(page)
        light = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.emulate_media(color_scheme="dark")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
        looks.assert_contrast(page)


@pytest.mark.parametrize("width", looks.WIDTHS)
def test_all_of_it_can_be_reached_by_keys(path: Path, browser: Browser, width: int) -> None:
    with looks.opened(browser, path, width=width) as page:
        looks.assert_tab_order(page)
        page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
        looks.assert_charts_are_read_by_keys(page)


def test_paper_shows_all_of_it(path: Path, browser: Browser) -> None:
    with looks.opened(browser, path, scheme="dark") as page:
        looks.assert_print_shows_all(page)


def test_the_verdict_comes_first_and_provenance_last(path: Path, browser: Browser) -> None:
    with looks.opened(browser, path) as page:
        order = page.evaluate("[...document.querySelectorAll('#verdict, main > section')].map((part) => part.id)")
        assert order[0] == "verdict"
        assert order[-1] == "provenance"
        # The table of a trial is what the verdict rests on, so it stands before the charts.
        tables = page.evaluate(
            "[...document.querySelectorAll("
            "'main > section:not(#bounds):not(#trial):not(#provenance) :is(figure, table)')]"
            ".map((part) => part.tagName)"
        )
        assert "FIGURE" in tables
        assert tables == sorted(tables)  # all figures before all tables


SEEN = """() => [...document.querySelectorAll('h1, h2, h3, p, li:not(.lines *), figcaption span')]
  .filter((part) => part.checkVisibility() && part.getBoundingClientRect().top < innerHeight)
  .map((part) => part.innerText.trim()).filter((words) => words.length > 12)"""


@pytest.mark.parametrize("kind", ALL)
def test_the_first_screen_has_a_picture_and_says_nothing_twice(kind: str, browser: Browser, tmp_path: Path) -> None:
    with looks.opened(browser, attnscope.report(sample(kind), tmp_path / "page.html")) as page:
        box = page.locator("main :is(figure, .findings)").locator("visible=true").first.bounding_box()
        assert box is not None
        assert box["y"] < 600
        said = page.evaluate(SEEN)
        assert sorted(said) == sorted(set(said))
