"""The page of a view in a real Chromium: maps unfold to the weights that were packed, by pointer and by keys."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

import attnscope
from tests.reports import looks
from tests.reports.sample_view import WORDS, sample_view

pytestmark = pytest.mark.browser


def _read(page: Page) -> str:
    return page.locator("#tooltip").inner_text()


def _drawn(page: Page, part: int, layer: int | str, head: int | str) -> None:
    page.wait_for_selector(f'[data-drawn="{part} {layer} {head}"]')


def test_what_is_read_is_what_was_packed(browser: Browser, tmp_path: Path) -> None:
    view = sample_view()
    with looks.opened(browser, view.save(tmp_path / "view.html"), width=1280) as page:
        _drawn(page, 1, 1, 2)
        looks.assert_looks(page)
        looks.assert_tab_order(page)
        page.focus("#lines")
        for key in ("ArrowDown", "ArrowDown", "ArrowDown"):
            page.keyboard.press(key)
        weights = view.attention(1, 2)[2]
        best = int(weights.argmax())
        assert _read(page).splitlines()[1] == f"'{WORDS['decoder'][best]}' (token {best}) {_share(weights[best])}"
        page.keyboard.press("Escape")
        assert page.locator("#tooltip").is_hidden()

        page.select_option("#part", "2")
        page.select_option("#choice", "mean")
        _drawn(page, 2, 1, "mean")
        page.click("[data-form=grid]")
        page.focus("#square")
        for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
            page.keyboard.press(key)
        share = _share(view.attention(1, part="decoder cross")[1, 1])
        assert _read(page) == f"' uno' (token 1) gives {share} to ' one' (token 1)"

        page.locator("#wall [tabindex='0']").focus()
        for key in ("ArrowRight", "ArrowDown", "ArrowDown"):  # to the next block, and down to its last head
            page.keyboard.press(key)
        _drawn(page, 2, 1, 2)
        assert "Block 1, head 2" in _read(page)
        page.locator("#wall canvas").nth(5).wait_for()


def test_it_opens_at_the_head_of_its_verdict_unless_the_address_names_another(browser: Browser, tmp_path: Path) -> None:
    view = attnscope.view("pocket", "The dog chased its own tail and the dog")
    assert max(view.heads, key=lambda head: head.first).head != 0  # the first head would prove nothing
    path = view.save(tmp_path / "view.html")
    with looks.opened(browser, path) as page:
        found = re.search(r"most in head (\d+) of block (\d+)", page.locator("#verdict").inner_text())
        assert found is not None
        _drawn(page, 0, found[2], found[1])
        page.goto(f"{path.as_uri()}#layer=3&head=2")
        page.reload()
        _drawn(page, 0, 3, 2)


def test_it_fits_a_telephone_and_paper(browser: Browser, tmp_path: Path) -> None:
    path = sample_view().save(tmp_path / "view.html")
    with looks.opened(browser, path, width=390, scheme="dark", has_touch=True) as page:
        page.goto(f"{path.as_uri()}#part=0&layer=1&head=0&form=grid")
        _drawn(page, 0, 1, 0)
        looks.assert_looks(page)
        box = page.locator("#grid-of-weights").bounding_box()
        assert box is not None
        page.locator("#square").tap(position={"x": box["width"] / 2, "y": box["height"] - 4})
        assert "(token 3) gives" in _read(page)
        looks.assert_print_shows_all(page)


def _share(weight: float) -> str:
    return f"{100 * weight:.{2 if weight < 0.1 else 1}f}%"
