"""The index page has every link, verdict, command and thumbnail, and the first verdict on top."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser

from attnscope.commands.records import Linked, index
from attnscope.reports.words import Verdict
from tests.commands.samples import ALL, sample
from tests.reports import looks

CALM = Linked("Is it healthy?", "attnscope scan pocket", "scan.html", Verdict("calm", "Nothing stands out."))
BAD = Linked("Why <b>?", 'attnscope paths pocket "a & b"', "paths.html", Verdict("warning", "One & two are alike."))


def test_each_page_is_linked_with_its_verdict_and_its_command() -> None:
    made = index("pocket", [CALM, BAD])
    read = re.sub(r"</?span[^>]*>", "", made)  # words of commands are kept whole by spans
    for one in (CALM, BAD):
        assert f'<a href="{one.place}">{html.escape(one.question)}</a>' in made
        assert html.escape(one.command).replace("&quot;", "&#34;") in read
        assert html.escape(one.verdict.sentence) in made
    assert "<b>" not in made


def test_each_page_has_a_thumbnail_without_words() -> None:
    linked = [Linked("?", "attnscope", "page.html", CALM.verdict, sample(kind).chart()) for kind in ALL]
    made = index("pocket", linked)
    pictures = re.findall(r'<div class="thumbnail" role="img" aria-label="Picture: [^"]+">(<svg.*?</svg>)</div>', made)
    assert len(pictures) == len(ALL)
    assert max(map(len, pictures)) < 30_000  # bytes; an index of all kinds stays under half a megabyte
    assert not any("<text" in picture or "aria-label" in picture for picture in pictures)
    assert all(picture.count("<path") > 1 for picture in pictures)
    assert "thumbnail" not in index("pocket", [CALM, BAD]).partition("<body>")[2]


def test_the_verdict_of_the_first_is_said_once() -> None:
    made = index("pocket", [CALM, BAD])
    assert [made.count(html.escape(one.verdict.sentence)) for one in (CALM, BAD)] == [1, 1]


@pytest.mark.browser
@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1280, "dark")])
def test_it_reads_well(browser: Browser, tmp_path: Path, width: int, scheme: Literal["light", "dark"]) -> None:
    path = tmp_path / "index.html"
    path.write_text(index("pocket", [CALM, replace(BAD, chart=sample("collapse").chart())]), "utf-8")
    with looks.opened(browser, path, width=width, scheme=scheme) as page:
        looks.assert_readable(page)
        looks.assert_fits(page)
        looks.assert_contrast(page)
        box = page.locator(".thumbnail svg").bounding_box()
        assert box is not None
        assert min(box["width"], box["height"]) > 100


def test_it_stands_under_the_verdict_of_the_first() -> None:
    for first, other in ((CALM, BAD), (BAD, CALM)):
        found = re.search(r'id="verdict" class="verdict (\w+)"', index("pocket", [first, other]))
        assert found is not None
        assert found[1] == first.verdict.level
