"""The page of a view in a real Chromium: maps unfold to the weights that were packed, by pointer and by keys."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page

from attnscope.records.explanation import Input
from attnscope.records.quantised import packed, quantised
from attnscope.records.view import HeadMap, Opened, Part, View
from tests.reporting import looks

pytestmark = pytest.mark.browser
WORDS = {
    "encoder": ("<s>", " one", "</script><b>", "\n"),
    "decoder": ("<s>", " uno", " dos", " tres", " a-very-long-word-of-a-language"),
}


def _part(name: str, queries: str, keys: str, causal: bool) -> Part:
    generator = np.random.default_rng(len(name))
    heads = []
    for layer in range(2):
        for head in range(3):
            weights = generator.dirichlet(np.full(len(WORDS[keys]), 0.5), len(WORDS[queries]))
            weights = np.tril(weights) if causal else weights
            codes, scales = quantised(weights)
            heads.append(HeadMap(layer, head, 0.001, 1.0, 0.5, 0.25, 0.125, packed(codes, scales, causal=causal)))
    return Part(name, queries, keys, causal, None, tuple(heads))


def sample_view() -> View:
    return View(
        model="<script>model",
        class_name="T5",
        text="one",
        dtype="float32",
        inputs=tuple(Input(name, words) for name, words in WORDS.items()),
        parts=(
            _part("encoder", "encoder", "encoder", False),
            _part("decoder", "decoder", "decoder", True),
            _part("decoder cross", "decoder", "encoder", False),
        ),
        opened=Opened("decoder", 1, 2),
        checked="Checked.",
    )


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
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
        _drawn(page, 2, 1, 1)
        assert "Layer 1, head 1" in _read(page)
        page.wait_for_function("document.querySelectorAll('#wall canvas').length === 6")


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
