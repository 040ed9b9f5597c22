"""The page in a real Chromium. Set ATTNSCOPE_NO_BROWSER=1 on a machine without one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from attnscope.commands.records import report as write_report
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.words import numeral
from tests.reports.charts.sample_model import encoder_decoder, made_survey, observations

pytestmark = pytest.mark.browser
FEW = ("relative_residual", "spike", "entropy", "sink_mass", "most_received")
NASTY = "<script>document.title='taken'</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def survey() -> Survey:
    return made_survey(observations(12, 5, 8, broken=((3, 2),), only=FEW))


@pytest.fixture(scope="module")
def report(survey: Survey, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(survey, tmp_path_factory.mktemp("report") / "report.html")


class Watched:
    """Opens pages that must not write to the console, fail, or load anything else."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self.complaints: list[str] = []

    def open(self, path: Path, tail: str = "", **options: Any) -> Page:
        settings: dict[str, Any] = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce", **options}
        page = self._browser.new_context(**settings).new_page()
        page.on("console", lambda message: self.complaints.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: self._request(request.url, path))
        page.goto(path.as_uri() + tail)
        return page

    def _request(self, address: str, path: Path) -> None:
        if not address.startswith((path.as_uri(), "data:", "blob:")):
            self.complaints.append(f"request: {address}")


@pytest.fixture
def watched(browser: Browser) -> Iterator[Watched]:
    watch = Watched(browser)
    yield watch
    for context in browser.contexts:
        context.close()
    assert watch.complaints == []


def overflow(page: Page) -> int:
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


def cell(page: Page, layer: int, head: int):
    return page.locator(f'#grid .cell[data-layer="{layer}"][data-head="{head}"]')


def test_hover_shows_the_number_of_the_survey(watched: Watched, report: Path, survey: Survey) -> None:
    page = watched.open(report)
    expect(page.locator("#grid .cell")).to_have_count(60)
    expect(page.locator("#tooltip")).to_be_hidden()
    cell(page, 7, 4).hover()
    expect(page.locator("#tooltip")).to_be_visible()
    expected = numeral(survey.values("sink_mass")[7, 4])
    assert page.locator("#tooltip").inner_text().splitlines()[:2] == [
        "Block 7, head 4",
        f"Sink mass {expected} share",
    ]
    cell(page, 3, 2).hover()
    expect(page.locator("#tooltip")).to_contain_text("NaN or infinite in 8 observations")
    assert "void" in (cell(page, 3, 2).get_attribute("class") or "")


def test_colours_follow_the_numbers(watched: Watched, report: Path, survey: Survey) -> None:
    page = watched.open(report)
    for layer in range(12):
        step = round(24 * float(f"{survey.values('sink_mass')[layer, 0]:.4g}"))
        assert f"q{step}" in (cell(page, layer, 0).get_attribute("class") or "").split()


def test_measures_are_chosen_by_list_and_by_picture(watched: Watched, report: Path) -> None:
    page = watched.open(report)
    page.locator("#measure").select_option(label="Entropy")
    cell(page, 1, 1).hover()
    expect(page.locator("#tooltip")).to_contain_text("nats")
    page.get_by_role("button", name="Most received", exact=True).click()
    expect(page.locator("#about")).to_contain_text("most attended key")
    cell(page, 1, 1).hover()
    expect(page.locator("#tooltip")).to_contain_text("mostly on key 0")


def test_findings_are_filtered_by_severity(watched: Watched, report: Path) -> None:
    page = watched.open(report)
    everything = page.locator(".finding").count()
    button = page.locator('.filter [data-severity="wrong"]')
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    shown = page.locator(".finding:visible")
    expect(shown).to_have_count(1)
    expect(shown).to_contain_text("NaN or infinity")
    page.locator('.filter [data-severity="all"]').click()
    expect(page.locator(".finding:visible")).to_have_count(everything)


def test_a_finding_highlights_its_heads(watched: Watched, report: Path) -> None:
    page = watched.open(report)
    data = json.loads(page.locator("#data").text_content() or "")
    number = next(i for i, f in enumerate(data["findings"]) if "first token" in f["sentence"])
    page.locator(f'[data-finding="{number}"]').click()
    expect(page.locator("#grid .cell.lit")).to_have_count(len(data["findings"][number]["heads"]))
    expect(page.locator("#measure option:checked")).to_have_text("Sink mass")
    page.locator("#unlight").click()
    expect(page.locator("#grid .cell.lit")).to_have_count(0)


def test_a_click_opens_the_head_and_escape_closes_it(watched: Watched, report: Path, survey: Survey) -> None:
    page = watched.open(report)
    cell(page, 9, 3).click()
    drawer = page.locator("#drawer")
    expect(drawer).to_be_visible()
    expect(page.locator("#drawer-title")).to_have_text("Block 9, head 3")
    expect(page.locator("#drawer-title")).to_be_focused()
    expected = f"{numeral(survey.values('entropy')[9, 3])} nats"
    expect(drawer.locator(".portrait > div", has_text="Entropy")).to_contain_text(expected)
    drawer.get_by_role("button", name="block →").click()
    expect(page.locator("#drawer-title")).to_have_text("Block 10, head 3")
    page.keyboard.press("Escape")
    expect(drawer).to_be_hidden()
    expect(cell(page, 10, 3)).to_be_focused()


def test_everything_can_be_reached_by_keyboard(watched: Watched, report: Path) -> None:
    page = watched.open(report)
    page.locator("#measure").focus()
    page.keyboard.press("Tab")
    expect(cell(page, 0, 0)).to_be_focused()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp", "ArrowUp"):
        page.keyboard.press(key)
    expect(cell(page, 1, 0)).to_be_focused()
    expect(page.locator("#tooltip")).to_contain_text("Block 1, head 0")
    page.keyboard.press("End")
    expect(cell(page, 11, 0)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#drawer-title")).to_have_text("Block 11, head 0")
    page.keyboard.press("Escape")
    page.locator(".plot").first.focus()
    page.keyboard.press("Home")
    expect(page.locator("#tooltip")).to_contain_text("entering block 0: ")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#tooltip")).to_contain_text("entering block 1: ")


def test_a_profile_reads_out_under_the_pointer(watched: Watched, report: Path) -> None:
    page = watched.open(report)
    plot = page.locator(".plot").first
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] - 12, box["y"] + 20)
    expect(page.locator("#tooltip")).to_contain_text("after the last block: ")


def test_a_head_has_an_address(watched: Watched, report: Path) -> None:
    page = watched.open(report, "#head=decoder/self/5/1")
    expect(page.locator("#drawer-title")).to_have_text("Block 5, head 1")
    watched.open(report, "#head=decoder/self/99/1").locator("#drawer").wait_for(state="hidden")


def test_a_specification_can_be_saved(watched: Watched, report: Path) -> None:
    page = watched.open(report)
    with page.expect_download() as download:
        page.locator("[data-save]").first.click()
    assert download.value.suggested_filename == "profile-decoder-stream-relative_residual.vl.json"
    assert "$schema" in json.loads(Path(download.value.path()).read_text())


def test_themes(watched: Watched, report: Path) -> None:
    def background(page: Page) -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    dark = watched.open(report, color_scheme="dark")
    light = watched.open(report, color_scheme="light")
    assert background(dark) == "rgb(13, 18, 24)"
    assert background(light) == "rgb(246, 247, 249)"
    for _ in range(2):
        light.locator("#theme").click()
    expect(light.locator("#theme")).to_have_text("Theme: dark")
    assert background(light) == "rgb(13, 18, 24)"
    line = light.locator(".plot .mark-line path").first
    assert line.evaluate("e => getComputedStyle(e).stroke") == "rgb(108, 184, 240)"
    light.emulate_media(media="print")
    assert background(light) == "rgb(255, 255, 255)"
    assert line.evaluate("e => getComputedStyle(e).stroke") == "rgb(11, 98, 164)"


@pytest.mark.parametrize("width", [320, 375, 820, 1280, 2200])
def test_nothing_overflows_the_page(watched: Watched, report: Path, width: int) -> None:
    page = watched.open(report, viewport={"width": width, "height": 800})
    assert overflow(page) == 0
    cell(page, 5, 2).click()
    expect(page.locator("#drawer")).to_be_visible()
    assert overflow(page) == 0


def test_print_shows_drawings_instead_of_controls(watched: Watched, report: Path) -> None:
    page = watched.open(report, viewport={"width": 700, "height": 900})
    page.emulate_media(media="print")
    assert overflow(page) == 0
    expect(page.locator("#explorer")).to_be_hidden()
    expect(page.locator("#thumbnails svg.map").first).to_be_visible()
    expect(page.locator(".plot svg").first).to_be_visible()
    assert len(page.pdf(format="A4")) > 10_000


def test_a_corpus_full_of_script_stays_text(watched: Watched, tmp_path: Path) -> None:
    groups = [o._replace(stack=NASTY) for o in observations(3, 2, 4, only=FEW)]
    survey = made_survey(groups, name=NASTY, corpus=NASTY)
    cards = {name: replace(card, title=NASTY, summary=NASTY, unit=NASTY) for name, card in survey.cards.items()}
    page = watched.open(write_report(replace(survey, cards=cards), tmp_path / "nasty.html"))
    assert page.title() == f"{NASTY} · attnscope"
    assert page.locator("h1").inner_text() == NASTY
    cell(page, 1, 1).hover()
    expect(page.locator("#tooltip")).to_contain_text(NASTY)
    cell(page, 1, 1).click()
    expect(page.locator("#portrait dt").first).to_contain_text(NASTY)
    assert page.locator("img, body script:not([type]) ~ script").count() == 0


def test_stacks_are_chosen(watched: Watched, tmp_path: Path) -> None:
    page = watched.open(write_report(encoder_decoder(only=FEW), tmp_path / "stacks.html"))
    expect(page.locator("#grid .cell")).to_have_count(12)
    page.locator("#place").select_option(label="decoder, cross-attention")
    expect(page.locator("#grid .cell")).to_have_count(15)
    expect(page.locator("#measure option:checked")).to_have_text("Sink mass")


def test_ninety_six_layers_and_heads(watched: Watched, tmp_path: Path) -> None:
    survey = made_survey(observations(96, 96, 1, only=("sink_mass",)))
    page = watched.open(write_report(survey, tmp_path / "huge.html", findings=()))
    expect(page.locator("#grid .cell")).to_have_count(96 * 96)
    cell(page, 95, 95).click()
    expect(page.locator("#drawer-title")).to_have_text("Block 95, head 95")
    assert overflow(page) == 0


@pytest.mark.parametrize("shape", [(2, 2), (6, 4), (12, 12), (30, 9), (80, 64)], ids=lambda s: f"{s[0]}x{s[1]}")
def test_maps_fill_their_card_whatever_the_size_of_the_model(
    watched: Watched, tmp_path: Path, shape: tuple[int, int]
) -> None:
    survey = made_survey(observations(*shape, 1, only=("sink_mass",)))
    page = watched.open(write_report(survey, tmp_path / "page.html", findings=()))
    card, grid = (page.locator(name).bounding_box() for name in ("#explorer", "#grid"))
    assert card
    assert grid
    assert grid["width"] >= 0.9 * (card["width"] - 60)  # its padding and the name of the axis aside
    assert grid["height"] <= 900
    first = page.locator('#grid [role="rowheader"]').first
    expect(first).to_have_text("0")
    assert (first.bounding_box() or {"x": 0})["x"] - grid["x"] < 20  # labels stand beside the squares, not in a gap
    box = cell(page, 0, 0).bounding_box()
    assert box
    assert box["height"] >= 9
    expect(page.locator(".axis-head")).to_have_text("head")
    expect(page.locator(".axis-block")).to_have_text("block")
    expect(page.locator("#legend")).to_contain_text("Colours run over the whole range of the measure.")
    written = cell(page, 0, 0).inner_text()
    assert bool(written) == (shape[0] <= 14 and shape[1] <= 24)
    page.set_viewport_size({"width": 390, "height": 800})
    assert overflow(page) == 0


def test_touch_shows_the_value_of_a_chart(watched: Watched, report: Path) -> None:
    page = watched.open(report, has_touch=True, viewport={"width": 390, "height": 800})
    plot = page.locator(".plot").first
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    assert box
    page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(page.locator("#tooltip")).to_contain_text("entering block")


def test_a_chart_is_saved_as_a_picture_in_the_colours_of_the_page(watched: Watched, report: Path) -> None:
    page = watched.open(report, color_scheme="dark")
    with page.expect_download() as download:
        page.locator("[data-picture]").first.click()
    assert download.value.suggested_filename == "profile-decoder-stream-relative_residual.png"
    saved = Path(download.value.path())
    assert saved.read_bytes().startswith(b"\x89PNG")
    from PIL import Image

    with Image.open(saved) as picture:
        assert picture.size[0] > 500
        assert picture.convert("RGB").getpixel((2, 2)) == (0x14, 0x1B, 0x24)  # the surface of the dark theme
        assert len(picture.convert("RGB").getcolors(1 << 20) or ()) > 10


def test_nothing_is_folded_on_paper(watched: Watched, report: Path) -> None:
    page = watched.open(report)
    expect(page.locator("#provenance td").first).to_be_hidden()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    expect(page.locator("#provenance td").first).to_be_visible()
    expect(page.locator("#glossary dd").first).to_be_visible()
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    expect(page.locator("#provenance td").first).to_be_hidden()
    page = watched.open(report, "#glossary")
    expect(page.locator("#glossary dd").first).to_be_visible()
