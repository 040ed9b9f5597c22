"""The page of a comparison: its content, and its use in a real Chromium."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

import attnscope
from attnscope.commands.compare.changes import largest_changes
from attnscope.commands.compare.record import Comparison, compare
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.words import numeral
from tests.reports.charts.sample_model import encoder_decoder, made_survey, observations
from tests.reports.test_browser import NASTY, Watched, overflow, watched  # noqa: F401

FEW = ("relative_residual", "spike", "entropy", "sink_mass")
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 800}, "has_touch": True}


def survey(name: str, seed: int = 0, tilt: float = 0.0, **more: Any) -> Survey:
    return made_survey(observations(12, 5, 8, seed=seed, tilt=tilt, only=FEW, **more), name=name)


@pytest.fixture(scope="module")
def found() -> Comparison:
    other = survey("org/tuned", seed=9, tilt=0.3, broken=((3, 1),))
    corpus = {**other.provenance["corpus"], "hash": "ef" * 32, "name": "other text"}
    return compare(survey("org/base"), replace(other, provenance={**other.provenance, "corpus": corpus}))


@pytest.fixture(scope="module")
def written(found: Comparison, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return attnscope.report(found, tmp_path_factory.mktemp("comparison") / "page.html")


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    steps = compare(*(survey(f"step {1000 * n}", seed=n, tilt=0.1 * n) for n in range(4)))
    return attnscope.report(steps, tmp_path_factory.mktemp("many") / "page.html")


def test_equal_records_give_equal_pages(found: Comparison, written: Path, tmp_path: Path) -> None:
    found.save(tmp_path / "comparison.json")
    again = attnscope.report(tmp_path / "comparison.json", tmp_path / "again.html")
    assert again.read_text() == written.read_text()


pytest_browser = pytest.mark.browser


@pytest_browser
def test_it_begins_with_what_got_worse(watched: Watched, written: Path, found: Comparison) -> None:  # noqa: F811
    page = watched.open(written)
    assert page.title() == "base → tuned · attnscope"
    expect(page.locator("h1")).to_have_text("base → tuned")
    expect(page.locator("#verdict")).to_have_class("verdict critical")
    expect(page.locator("#verdict")).to_contain_text("New: NaN or infinity 0 → 1 head (wrong)")
    headings = page.locator("main h2").all_inner_texts()
    assert headings == [
        "Cautions",
        "Changes by block",
        "Findings that changed",
        "Side by side",
        "The same in both",
        "Against depth",
        "Difference of every head",
        "Provenance",
    ]
    texts = "Not comparable one to one. The texts differ (made-up text; other text)"
    expect(page.locator("#cautions")).to_contain_text(texts)
    assert page.locator(".finding .badge").all_text_contents() == [pair.status for pair in found.findings]
    assert page.locator(".finding").first.locator("dd").all_inner_texts()[0] == "No such finding."
    assert page.locator("#side-by-side table").count() == 2
    expect(page.locator("#provenance details")).not_to_have_attribute("open", "")


@pytest_browser
def test_both_values_of_the_largest_changes(watched: Watched, written: Path, found: Comparison) -> None:  # noqa: F811
    page = watched.open(written)
    top = largest_changes(found, 1)[0]
    cells = page.locator("#changes-by-block tbody tr").first.locator("th, td").all_inner_texts()
    assert f"in block {top.layer}, head {top.head}" in cells[0]
    assert cells[1].startswith(f"{numeral(top.before, 3)} → {numeral(top.after, 3)}")
    assert cells[-1] == f"{top.effect:+.1f}"


@pytest_browser
def test_maps_are_read_by_pointer_and_keys(watched: Watched, written: Path, found: Comparison) -> None:  # noqa: F811
    page = watched.open(written)
    maps = json.loads(page.locator("#data").text_content() or "")["maps"]
    number = next(n for n, one in enumerate(maps) if one["title"] == "Entropy")
    box = page.locator(f'.difference[data-map="{number}"]')
    box.scroll_into_view_if_needed()
    place = box.bounding_box()
    assert place
    page.mouse.move(place["x"] + place["width"] * 7.5 / 12, place["y"] + place["height"] * 4.5 / 5)
    first, second = (numeral(s.values("entropy")[7, 4]) for s in found.surveys)
    expect(page.locator("#tooltip")).to_contain_text(f"Entropy {first} → {second} nats (")
    expect(page.locator("#tooltip")).to_contain_text("Block 7, head 4")
    page.mouse.move(0, 0)
    expect(page.locator("#tooltip")).to_be_hidden()
    box.focus()
    for key in ("Home", "ArrowRight", "ArrowRight", "ArrowUp", "ArrowUp"):
        page.keyboard.press(key)
    expect(page.locator("#tooltip")).to_contain_text("Block 2, head 2")  # from where the pointer was
    page.keyboard.press("End")
    expect(page.locator("#tooltip")).to_contain_text("Block 11, head 2")
    page.keyboard.press("Tab")
    expect(page.locator("#tooltip")).to_be_hidden()


@pytest_browser
def test_lines_are_read_by_keys(watched: Watched, written: Path) -> None:  # noqa: F811
    page = watched.open(written)
    plot = page.locator(".plot").first
    plot.focus()
    page.keyboard.press("Home")
    expect(page.locator("#tooltip")).to_contain_text("base, ")
    page.keyboard.press("End")
    expect(page.locator("#tooltip")).to_contain_text("tuned, ")


SIZES = """() => [...document.querySelectorAll('.plot svg')].filter(s => s.getBoundingClientRect().width).map(s => {
  const scale = s.getBoundingClientRect().width / s.viewBox.baseVal.width;
  const letters = [...s.querySelectorAll('text')].map(t => parseFloat(getComputedStyle(t).fontSize) * scale);
  return [Math.min(...letters), s.getBoundingClientRect().width / s.closest('.panel').getBoundingClientRect().width];
})"""
SPEAKING = """(e) => e.checkVisibility() && !e.closest('svg')
  && [...e.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim())"""
TEXTS = f"""() => [...document.querySelectorAll('main *, header *')].filter({SPEAKING})
  .map((e) => parseFloat(getComputedStyle(e).fontSize))"""


def well_laid(page: Page) -> None:
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert overflow(page) == 0
    sizes = page.evaluate(SIZES)
    assert sizes
    for letters, share in sizes:
        assert letters >= 10.99
        assert share >= 0.6
    assert min(page.evaluate(TEXTS)) >= 11


@pytest_browser
@pytest.mark.parametrize(
    "width", [390, *(pytest.param(width, marks=pytest.mark.thorough) for width in (700, 820, 1100, 1280, 1900))]
)
def test_nothing_is_cut_or_small(watched: Watched, written: Path, many: Path, width: int) -> None:  # noqa: F811
    for page in (written, many):
        well_laid(watched.open(page, viewport={"width": width, "height": 800}))


CONTRAST = (
    """() => {
  const channel = (v) => v / 255 <= .03928 ? v / 255 / 12.92 : ((v / 255 + .055) / 1.055) ** 2.4;
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map((v) => channel(Number(v)));
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if (colour !== 'rgba(0, 0, 0, 0)') return colour;
    }
  };
  const speaking = """
    + SPEAKING
    + """;
  return [...document.querySelectorAll('header *, section *')].filter(speaking)
    .map((e) => {
      const [a, b] = [light(getComputedStyle(e).color), light(ground(e))];
      return [(Math.max(a, b) + .05) / (Math.min(a, b) + .05), e.textContent.slice(0, 40)];
    }).sort((x, y) => x[0] - y[0])[0];
}"""
)


@pytest_browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_both_themes_can_be_read(watched: Watched, written: Path, many: Path, theme: str) -> None:  # noqa: F811
    for path in (written, many):
        page = watched.open(path, color_scheme=theme)
        contrast, words = page.evaluate(CONTRAST)
        assert contrast >= 4.5, words
    page = watched.open(written, color_scheme=theme)
    ends = [
        page.evaluate(f"getComputedStyle(document.documentElement).getPropertyValue('--d{step}')") for step in (0, 24)
    ]
    strokes = page.evaluate("[...document.querySelectorAll('.difference path')].map(p => getComputedStyle(p).stroke)")
    assert len(set(strokes)) > 5
    for colour in ends:
        red, green, blue = (int(colour.strip()[n : n + 2], 16) for n in (1, 3, 5))
        assert f"rgb({red}, {green}, {blue})" in strokes


@pytest_browser
def test_touch_shows_the_value_of_a_map(watched: Watched, written: Path) -> None:  # noqa: F811
    page = watched.open(written, **PHONE)
    box = page.locator(".difference").first
    box.scroll_into_view_if_needed()
    place = box.bounding_box()
    assert place
    page.touchscreen.tap(place["x"] + 3, place["y"] + 3)
    expect(page.locator("#tooltip")).to_contain_text("Block 0, head 0")
    page.touchscreen.tap(5, 5)
    expect(page.locator("#tooltip")).to_be_hidden()


ORDER = ["changes-by-block", "side-by-side", "depth", "heads", "provenance"]


@pytest_browser
def test_everything_is_reached_in_order_by_tab(watched: Watched, written: Path) -> None:  # noqa: F811
    page = watched.open(written)
    seen = []
    for _ in range(60):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.closest('section')?.id || document.activeElement.tagName"))
    order = list(dict.fromkeys(one for one in seen if one in ORDER))
    assert order == ORDER


@pytest_browser
def test_print_shows_what_is_folded(watched: Watched, written: Path) -> None:  # noqa: F811
    page = watched.open(written, viewport={"width": 700, "height": 900})
    page.emulate_media(media="print")
    assert overflow(page) == 0
    expect(page.locator("#provenance td").first).to_be_visible()
    assert len(page.pdf(format="A4")) > 10_000


@pytest_browser
def test_many_surveys_side_by_side(watched: Watched, many: Path) -> None:  # noqa: F811
    page = watched.open(many)
    expect(page.locator("h1")).to_have_text("step 0 against step 1000, step 2000, step 3000")
    for table in page.locator("#side-by-side table").all():
        assert table.locator("thead th").all_inner_texts()[1:] == [f"step {1000 * n}" for n in range(4)]
        assert all(row.locator("td").count() == 4 for row in table.locator("tbody tr").all())
    assert page.locator("#depth figure").first.locator(".mark-line path").count() == 4
    assert page.locator(".difference").count() == 0
    page.locator(".plot").first.focus()
    page.keyboard.press("End")
    expect(page.locator("#tooltip")).to_contain_text("step 3000, ")


@pytest_browser
def test_nothing_changed(watched: Watched, tmp_path: Path) -> None:  # noqa: F811
    same = survey("org/base")
    page = watched.open(attnscope.report(compare(same, same), tmp_path / "same.html"))
    expect(page.locator("#verdict")).to_have_class("verdict calm")
    expect(page.locator("#verdict")).to_have_text(
        "Nothing that is wrong is new (the loss is unknown): the findings are the same. Every number is the same."
    )
    expect(page.locator("#changes")).to_contain_text("Nothing changed: ")
    assert page.locator(".difference").count() == 0
    assert page.locator(".finding:visible").count() == 0  # folded: the same in both


@pytest_browser
def test_stacks_and_models_of_other_sizes(watched: Watched, tmp_path: Path) -> None:  # noqa: F811
    stacks = compare(encoder_decoder(only=FEW), encoder_decoder(only=FEW))
    page = watched.open(attnscope.report(stacks, tmp_path / "stacks.html"))
    assert {"encoder", "decoder, cross-attention"} <= set(page.locator("#depth figcaption p").all_text_contents())
    deeper = made_survey(observations(6, 3, 4, only=FEW), name="deeper")
    page = watched.open(attnscope.report(compare(survey("base"), deeper), tmp_path / "sizes.html"))
    assert page.locator(".difference").count() == 0
    expect(page.locator("#depth figure").first).to_be_visible()


@pytest_browser
def test_text_from_surveys_stays_text(watched: Watched, tmp_path: Path) -> None:  # noqa: F811
    sides = []
    for seed in (0, 1):
        groups = [o._replace(stack=NASTY) for o in observations(3, 2, 4, only=FEW, seed=seed)]
        made = made_survey(groups, name=f"{NASTY}{seed}", corpus=NASTY)
        cards = {name: replace(card, title=NASTY, summary=NASTY, unit=NASTY) for name, card in made.cards.items()}
        sides.append(replace(made, cards=cards))
    page = watched.open(attnscope.report(compare(*sides), tmp_path / "nasty.html"))
    assert page.locator("img").count() == 0
    assert "taken" not in page.title().replace(NASTY, "")
    page.locator(".difference").first.hover()
    expect(page.locator("#tooltip")).to_contain_text(NASTY)
