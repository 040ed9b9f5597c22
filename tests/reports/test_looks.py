"""The checks of looks.py fail for bad pages, and only for these."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.reports import looks

pytestmark = pytest.mark.browser

STYLE = """
body { margin: 0; font: 16px sans-serif; color: #222; background: #fff; }
.panel { padding: 10px; margin: 10px; } .plot svg { display: block; width: 100%; }
:focus-visible { outline: 2px solid #00f; }
.wide { width: 900px; } .auto { overflow-x: auto; } .hide { overflow: hidden; }
.grid { display: grid; grid-template-columns: 1fr 1fr; } .half { width: 50% !important; }
.pale { color: #999; } .dim { opacity: .5; } .over { background: rgb(0 0 0 / 80%); } .white { color: #fff; }
.small { font-size: 10px; }
"""
LABEL = '<text y="20" font-size="{size}" fill="{fill}">label</text>'
SVG = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} 50" class="{kind}">' + LABEL + "</svg>"


def svg(width: int = 350, size: int = 12, fill: str = "#222", kind: str = "") -> str:
    return f'<figure class="panel"><div class="plot">{SVG.format(**locals())}</div></figure>'


GOOD = {
    "text": "<p>Some words</p>",
    "chart": svg(),
    "a table that scrolls": '<div class="auto" tabindex="0"><p class="wide">Some words</p></div>',
    "charts side by side": f'<div class="grid">{svg(70, kind="half")}{svg(70, kind="half")}</div>',
    "white on dark": '<div class="over"><p class="white">Some words</p></div>',
    "what is hidden": '<p>Some words</p><p hidden class="small pale">No words</p>',
}
BAD: dict[str, tuple[Callable[[Page], None], str, str]] = {
    "small text": (looks.assert_readable, '<p class="small">Some words</p>', "10.0 px"),
    "a chart that shrank": (looks.assert_readable, svg(700), "px: 'label'"),
    "no text": (looks.assert_readable, "<hr>", "no text"),
    "a wide page": (looks.assert_fits, '<p class="wide">Some words</p>', "the page is 900 px wide"),
    "a cut box": (looks.assert_fits, '<div class="hide"><p class="wide">Some words</p></div>', "hides what is in it"),
    "a box no key scrolls": (looks.assert_fits, '<div class="auto"><p class="wide">Some</p></div>', "no key reaches"),
    "text beyond its card": (
        looks.assert_fits,
        svg().replace('y="20"', 'y="20" x="390"').replace("<svg", '<svg overflow="visible"'),
        "leaves its card",
    ),
    "a label on another": (
        looks.assert_labels_apart,
        svg().replace("</svg>", LABEL.format(size=12, fill="#222") + "</svg>"),
        "'label' lies on 'label'",
    ),
    "a narrow chart": (looks.assert_wide_enough, svg(kind="half"), "in panel"),
    "pale text": (looks.assert_contrast, '<p class="pale">Some words</p>', "2.85 : 1"),
    "pale by opacity": (looks.assert_contrast, '<p class="dim">Some words</p>', ": 1 of 'Some words'"),
    "dark on dark": (looks.assert_contrast, '<div class="over"><p>Some words</p></div>', ": 1 of 'Some words'"),
    "a pale label": (looks.assert_contrast, svg(fill="#bbb"), "of 'label'"),
    "an order of its own": (
        looks.assert_tab_order,
        '<a href="#a">first</a> <a href="#b" tabindex="1">second</a>',
        "too late in the order",
    ),
    "a focus nobody sees": (
        looks.assert_tab_order,
        '<style>a:focus-visible { outline: none; }</style><a href="#a">first</a>',
        "does not show it",
    ),
    "a chart that is mute": (looks.assert_charts_are_read_by_keys, svg(), "1 of 1 charts cannot be read"),
}


def written(folder: Path, body: str) -> Path:
    path = folder / "page.html"
    path.write_text(f"<!DOCTYPE html><html><head><style>{STYLE}</style></head><body>{body}</body></html>", "utf-8")
    return path


@pytest.mark.parametrize("name", GOOD)
def test_what_is_right_passes(name: str, browser: Browser, tmp_path: Path) -> None:
    with looks.opened(browser, written(tmp_path, GOOD[name]), width=390) as page:
        looks.assert_looks(page)


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_named(name: str, browser: Browser, tmp_path: Path) -> None:
    question, body, complaint = BAD[name]
    with (
        looks.opened(browser, written(tmp_path, body), width=390) as page,
        pytest.raises(AssertionError, match=complaint.replace("(", r"\(")),
    ):
        question(page)


def test_a_page_that_speaks_on_the_console_fails(browser: Browser, tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError, match="console: oh"),
        looks.opened(browser, written(tmp_path, "<script>console.log('oh')</script>")),
    ):
        pass
