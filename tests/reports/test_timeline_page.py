"""The page of a timeline in a real browser: maps by pointer and keys, two runs, the note on thinning, and size."""

from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, expect
from rich.console import Console

from attnscope.commands.timeline import maps as drawing
from attnscope.commands.timeline.maps import step_maps
from attnscope.commands.timeline.record import Timeline
from attnscope.commands.timeline.terminal import frame, spark
from attnscope.commands.timeline.words import title_of
from attnscope.commands.watch.values import Values
from attnscope.core.card import Alarm
from tests.commands.scan.survey.sample import CARDS
from tests.commands.timeline.sample import header, looks, sample_timeline
from tests.reports import looks as asking


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    both = replace(sample_timeline(40, 4, 3), beside=(sample_timeline(25, 4, 3, name="other", seed=1),))
    return both.save(tmp_path_factory.mktemp("page") / "timeline.html")


@pytest.mark.browser
def test_two_runs_side_by_side_are_read_with_keys_and_pointer(two: Path, browser: Browser) -> None:
    with asking.opened(browser, two) as page:
        page.wait_for_selector("#runs .heat")
        assert page.locator("#runs .run").count() == 2
        asking.assert_looks(page)
        asking.assert_tab_order(page)
        heat = page.locator("#runs .picture[tabindex]").first
        heat.focus()
        for key in ("ArrowDown", "End"):
            page.keyboard.press(key)
        expect(page.locator("#tooltip")).to_contain_text("Step 2,000, block 1")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        expect(page.locator("#layer")).to_have_value("2")  # waiting by a function would be an eval, which pages forbid
        page.select_option("#rows", "every")
        expect(page.locator("#runs .heat").first).to_have_attribute("viewBox", re.compile(r" 12$"))
        page.locator("#thumbnails figure").nth(0).click()
        expect(page.locator("#which")).to_have_text("Relative residual")


@pytest.mark.browser
def test_a_telephone_in_the_dark_and_paper(two: Path, browser: Browser) -> None:
    with asking.opened(browser, two, width=390, scheme="dark") as page:
        page.wait_for_selector("#runs .heat")
        asking.assert_looks(page)
        asking.assert_print_shows_all(page)


def test_what_is_packed_is_within_a_step_of_what_was_measured() -> None:
    import base64
    import zlib

    timeline = sample_timeline(30, 4, 3)
    for one in step_maps(timeline):
        told = one.to_json()["runs"][0]
        raw = np.frombuffer(zlib.decompress(base64.b64decode(told["packed"])), np.uint8)
        codes = np.moveaxis(raw.reshape(*one.numbers[0].shape[1:], 30), -1, 0)
        assert (codes <= drawing.LEVELS).all()
        share = one.scale.share(timeline.numbers(one.key))
        # a code is the nearest of 250 steps
        assert np.abs(codes / drawing.LEVELS - share).max() <= 0.5 / drawing.LEVELS + 1e-12


def test_numbers_that_run_away_leave_colours_for_what_came_before() -> None:
    timeline = sample_timeline(3, 3, 2)
    card = replace(CARDS["entropy"], name="max_logit", low=-np.inf, bound=None, alarm=Alarm(">", 100.0, "too large"))
    sizes = (np.array([[-3.0, 10.0], [20.0, 30.0], [40.0, 50.0]]) * factor for factor in (1, 10, 10_000))
    looks = tuple(
        replace(one, values=(Values.of("max_logit", "value", "model", "self", size),))
        for one, size in zip(timeline.looks, sizes, strict=True)
    )
    away = replace(timeline, header=replace(timeline.header, measures={"max_logit": card}), looks=looks)
    (found,) = step_maps(away)
    codes = found.codes(found.numbers[0])
    assert (found.scale.low, found.scale.high, found.scale.log) == (1.0, 500_000.0, True)
    assert codes[0, 0, 0] == codes[2, 0, 0] == 0  # below the lowest colour
    assert codes[0, 2, 1] > 50  # of 250; on a linear scale it would look like zero
    (near,) = step_maps(replace(away, looks=looks[:2]))
    assert near.scale.diverging


def test_a_number_that_is_not_finite_is_crossed_out_and_what_was_not_measured_is_empty() -> None:
    timeline = sample_timeline(3, 3, 2)
    broken = timeline.looks[1].values[4].numbers.copy()
    broken[2, 1] = np.nan
    values = tuple(
        Values.of(*v.key, broken) if v.measure == "entropy" else v
        for v in timeline.looks[1].values
        if v.measure != "sink_mass"
    )
    timeline = replace(
        timeline, looks=(timeline.looks[0], replace(timeline.looks[1], values=values), timeline.looks[2])
    )
    found = {one.key[0]: one.codes(one.numbers[0]) for one in step_maps(timeline)}
    assert found["entropy"][1, 2, 1] == drawing.NO_NUMBER
    assert (found["sink_mass"][1] == drawing.ABSENT).all()


def test_two_thousand_looks_are_thinned_below_two_megabytes_and_the_page_says_so(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    base = looks(40, layers=12, heads=12)
    many = tuple(
        replace(
            base[n % 40],
            step=n + 1,
            alarms=(),
            values=tuple(Values.of(f"m{k}", "value", "model", "self", draw.normal(size=(12, 12))) for k in range(20)),
        )
        for n in range(2000)
    )
    page = Timeline("big", header(12, 12), many).save(tmp_path / "big.html").read_text()
    assert len(page.encode()) <= 2_000_000  # white noise does not fold: a real run is smaller
    assert re.search(
        r"2,000 looks are drawn in \d+ columns: of \d+ neighbouring looks, each column shows the value farthest", page
    )


def test_parts_are_named_but_for_a_value_that_comes_first() -> None:
    spike, gradient = CARDS["spike"], replace(CARDS["spike"], title="Gradient norm", parts=("query", "value"))
    assert title_of(spike, ("spike", "value", "model", "stream")) == spike.title
    assert title_of(spike, ("spike", "second", "model", "stream")) == f"{spike.title}, second"
    assert title_of(gradient, ("gradient_norm", "query", "model", "self")) == "Gradient norm, query"
    assert title_of(gradient, ("gradient_norm", "value", "model", "self")) == "Gradient norm, value"


def test_the_live_screen_fits_and_says_what_holds() -> None:
    written = StringIO()
    console = Console(width=80, height=24, file=written)
    console.print(frame(sample_timeline(20), width=80, height=24, silent=3.0))
    screen = written.getvalue()
    assert "step 1,000 · loss" in screen
    assert "25,600 tokens/s" in screen
    assert "last 3 s ago" in screen
    assert "step 850 entropy_collapse: 0.4 < 0.5 (block 1, head 0). Entropy collapses" in screen
    assert "q quits" in screen
    lines = screen.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert spark(np.array([0.0, 1.0, np.nan, 7.0])) == "▁▂·█"


def test_the_live_screen_shows_no_number_that_the_last_look_does_not_have() -> None:
    run = sample_timeline(5)
    last = run.looks[-1]
    gone = tuple(replace(one, numbers=np.full_like(one.numbers, np.nan)) for one in last.values)
    run = replace(run, looks=(*run.looks[:-1], replace(last, loss=None, values=gone)))
    written = StringIO()
    Console(width=80, height=40, file=written).print(frame(run, width=80, height=40))
    lines = written.getvalue().splitlines()
    assert any("loss –" in line for line in lines)
    (entropy,) = [line for line in lines if line.startswith(CARDS["entropy"].title)]
    assert re.search(r"–\s+\S*·$", entropy.rstrip())
