"""Check the appearance of a page in a real Chromium: readable letters, nothing cut off, charts that fill their cards,
contrast, keyboard access, and complete prints.

    with opened(browser, path, width=390, scheme="dark") as page:
        assert_looks(page)

Every function checks a page at its current width and theme, and names what is wrong. The code that runs inside the page
is in looks.js.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Page

WIDTHS = (390, *(pytest.param(width, marks=pytest.mark.thorough) for width in (820, 1280)))
"""Pixels: a phone always, wider screens in `make test-all`."""
SMALLEST = 11.0
"""Pixels of a letter on the screen, whatever an SVG is scaled by."""
ROUNDING = 0.05  # rounding of a scaled letter
CONTRAST, LARGE_CONTRAST = 4.5, 3.0
"""WCAG 2.2, criterion 1.4.3, for text and for large text."""
NARROWEST = 0.6
"""Share of its card that a chart fills."""
PAPER = {"width": 690, "height": 980}  # A4 without its margins

_QUESTIONS = Path(__file__).with_suffix(".js").read_text("utf-8")


def _ask(page: Page, question: str, *given: float) -> Any:
    return page.evaluate(f"{_QUESTIONS}\nlooks.{question}({', '.join(map(json.dumps, given))})")


@contextmanager
def opened(
    browser: Browser, path: Path, *, width: int = 1280, scheme: Literal["light", "dark"] = "light", **options: Any
) -> Iterator[Page]:
    """Open a page at a width and theme. It must not write to the console, fail, or load anything."""
    complaints: list[str] = []
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce", **options
    )
    page = context.new_page()
    page.on("console", lambda message: complaints.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
    page.on("request", lambda request: _foreign(request.url, path, complaints))
    try:
        page.goto(path.as_uri())
        yield page
    finally:
        context.close()
    assert not complaints, "\n".join(complaints)


def assert_looks(page: Page) -> None:
    """Check everything that does not change the page."""
    assert_readable(page)
    assert_fits(page)
    assert_labels_apart(page)
    assert_wide_enough(page)
    assert_contrast(page)


def assert_readable(page: Page, least: float = SMALLEST) -> None:
    """Check that no letter on the screen is too small, scaled charts included."""
    sizes = _ask(page, "sizes")
    assert sizes, "the page shows no text"
    small = [f"{size:.1f} px: '{words}' ({where})" for size, words, where in sizes if size < least - ROUNDING]
    assert not small, "\n".join(small)


def assert_fits(page: Page) -> None:
    """Check that the page does not scroll sideways, no text leaves the screen or its card, and no box hides part of its
    content unless it can be scrolled with keys."""
    cut = _ask(page, "cut")
    assert not cut, "\n".join(cut)


def assert_labels_apart(page: Page) -> None:
    """Check that no labels of a chart overlap."""
    overlaps = _ask(page, "overlaps")
    assert not overlaps, "\n".join(overlaps)


def assert_wide_enough(page: Page, share: float = NARROWEST) -> None:
    """Check that every chart fills that share of its card, unless several cards are side by side."""
    narrow = _ask(page, "narrow", share)
    assert not narrow, "\n".join(narrow)


def assert_contrast(page: Page, least: float = CONTRAST, large: float = LARGE_CONTRAST) -> None:
    """Check the contrast of every text with the backgrounds of the elements around it."""
    pale = _ask(page, "pale", least, large)
    assert not pale, "\n".join(pale)


def assert_tab_order(page: Page) -> None:
    """Check that Tab reaches all controls in the order of the page and shows the focus."""
    page.evaluate("document.activeElement.blur(); window.reached = []")
    expected, names = _ask(page, "reachable"), []
    for _ in range(expected + 1):
        page.keyboard.press("Tab")
        step = _ask(page, "step")
        if step is None:
            break
        name, ordered, marked = step
        assert ordered, f"{name} comes too late in the order of Tab"
        assert marked, f"{name} has the focus and does not show it"
        names.append(name)
    assert len(names) == expected, f"Tab reaches {len(names)} of {expected}: {names}"


def assert_charts_are_read_by_keys(page: Page, *, silent: int = 0) -> None:
    """Check that keys show the first and last value of every visible chart, beside the mark and on the screen.

    `silent` charts have no values to show.
    """
    plots = page.locator(".plot:visible")
    speaking = _ask(page, "speaking")
    mute = speaking.count(False)
    assert mute == silent, f"{mute} of {len(speaking)} charts cannot be read"
    screen = page.viewport_size
    assert screen is not None
    for place, speaks in enumerate(speaking):
        plot = plots.nth(place)
        plot.focus()
        for key in ("End", "Home") if speaks else ():
            page.keyboard.press(key)
            tooltip, mark = page.locator("#tooltip"), plot.locator(".read")
            assert tooltip.is_visible(), f"chart {place} says nothing on {key}"
            words, box, at = tooltip.inner_text(), tooltip.bounding_box(), mark.bounding_box()
            assert words.strip()
            assert box is not None
            assert at is not None, f"chart {place} reads a mark that nobody sees: {words}"
            assert box["x"] >= 0, f"cut on the left: {words}"
            assert box["x"] + box["width"] <= screen["width"], f"cut on the right: {words}"
            middle = at["x"] + at["width"] / 2
            assert box["x"] - 1 <= middle <= box["x"] + box["width"] + 1, f"not beside its mark: {words}"
        plot.blur()
        assert page.locator("#tooltip").is_hidden()


def assert_print_shows_all(page: Page) -> None:
    """Check that prints show every fold, overflow nowhere, and use the light theme."""
    page.emulate_media(media="print")
    page.set_viewport_size(PAPER)  # type: ignore[arg-type]
    folded, beyond = _ask(page, "folded"), _ask(page, "beyond")
    assert not folded, "\n".join(folded)
    assert not beyond, "\n".join(beyond)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert_contrast(page)
    assert len(page.pdf(format="A4")) > 10_000


def _foreign(address: str, path: Path, complaints: list[str]) -> None:
    if not address.startswith((path.as_uri(), "data:", "blob:")):
        complaints.append(f"request: {address}")
