"""One document, three renderers: a page, a terminal and a notebook say the same, and escape it."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from attnscope.core.errors import RefusalError
from attnscope.reports.document import Card, Document, Figure, Section, Table, drawn_by
from attnscope.reports.notebook import document_html
from attnscope.reports.page import document_page, prose
from attnscope.reports.tabs import Cell, Drawing, Label, Shade, ShadedText, Tab
from attnscope.reports.terminal import document_screen
from attnscope.reports.words import Verdict

NASTY = "<b>[red]x</b>\x1b[31m"
TABLE = Table(("head", "value"), (("first", "1"), ("second", "2"), ("third", "3")), note="A note on rows.", brief=2)
CARD = Card("warning", "missed", f"It is large {NASTY}.", (("Measured", ("one", "two")),), about="arXiv:2103.03404")


def _refuse(width: int) -> None:
    raise RefusalError("Nothing was measured, so there is nothing to draw.")


DOCUMENT = Document(
    Verdict("warning", f"The verdict {NASTY}."),
    "The title",
    about=("What was measured",),
    sections=(
        Section("Findings", background=("How to read it.",), sentences=("A sentence.",), items=("An item.",)),
        Section("Claims", cards=(CARD,), notes=("note one", "note two", "note three")),
        Section("Heads", figures=(Figure("none", "A refused figure", _refuse),), tables=(TABLE,), link="Rows"),
        Section("Deep", sentences=("A detail.",), tables=(Table((), (("only", "row"),), align="ll"),), detail=True),
    ),
    provenance=(("model", "pocket"),),
)


def screen(verbose: bool, document: Document = DOCUMENT) -> str:
    stream = io.StringIO()
    Console(file=stream, width=80).print(document_screen(document, verbose=verbose))
    return stream.getvalue()


def test_a_brief_screen_leaves_out_details_and_a_verbose_one_shows_all() -> None:
    brief, wordy = screen(verbose=False), screen(verbose=True)
    shown = (
        "The verdict",
        "What was measured",
        "A sentence.",
        "· An item.",
        "missed",
        "It is large",
        "note two",
        "second",
    )
    hidden = ("How to read it.", "one; two", "note three", "third", "A note on rows.", "A detail.", "only")
    assert all(words in brief and words in wordy for words in shown)
    assert all(words not in brief and words in wordy for words in hidden)
    assert "\x1b" not in wordy
    assert "[red]x" in wordy  # markup is text
    assert brief.index("A sentence.") < brief.index("Claims") < brief.index("Heads")


def test_a_section_that_only_a_page_can_show_has_no_title_on_a_screen() -> None:
    figures = Section("Curves", background=("How to read it.",), figures=(Figure("none", "t", _refuse),))
    assert "Curves" not in screen(True, replace(DOCUMENT, sections=(DOCUMENT.sections[0], figures)))


def test_a_page_shows_all_folds_details_and_gives_the_reason_of_a_refused_figure() -> None:
    page = document_page(DOCUMENT, "capacity")
    texts = ("How to read it.", "A sentence.", "An item.", "note three", "third", "A note on rows.", "A detail.", "two")
    for words in (*texts, "attnscope capacity", "Nothing was measured, so there is nothing to draw.", "pocket"):
        assert words in page
    assert page.count("<details") == 2  # the detail, and the provenance
    assert re.findall('<a href="#([^"]+)">', page) == ["findings", "claims", "rows", "deep", "provenance"]
    assert "<b>[red]" not in page
    assert page == document_page(DOCUMENT, "capacity")


def test_a_notebook_shows_what_is_no_detail_and_escapes_it() -> None:
    shown = document_html(DOCUMENT)
    assert all(words in shown for words in ("A sentence.", "An item.", "missed", "third", "What was measured"))
    assert "A detail." not in shown
    assert "<b>" not in shown
    assert DOCUMENT.sentences == (DOCUMENT.verdict.sentence, "A sentence.", "An item.")


def test_tabs_are_switched_on_a_page_and_the_first_is_shown_in_a_terminal() -> None:
    drawing = Drawing(
        "A drawing",
        2,
        1,
        (Cell(0, 0, 1, 1, 0.5, True, NASTY),),
        (Label(0, 0, NASTY, turned=True),),
        caption="Under it",
        lines_of_text=((Shade("██", "d0"),),),
    )
    text = ShadedText((Shade(NASTY, "q3", NASTY, "underlined"), Shade("a\nb")), label="input")
    tabs = (Tab("First", (text,), "A caption", ("0", "1")), Tab("Second", (drawing,)))
    document = replace(DOCUMENT, sections=(Section("Text", tabs=tabs),))
    page = document_page(document, "explain")
    assert page.count('<button type="button" aria-pressed=') == 2
    assert all(
        words in page for words in ("A caption", "First</h3>", "Second</h3>", "Under it", "rotate(-60 0.00 0.00)")
    )
    assert "<b>" not in page
    assert "tabs" not in document_page(DOCUMENT, "explain").split("<script")[-1]
    brief, wordy = screen(False, document), screen(True, document)
    assert "Text: First" in brief
    assert "input: <b>[red]x</b>" in brief
    assert "a⏎b" in brief
    assert "Text: Second" not in brief
    assert "██" in wordy
    assert "Under it" in wordy
    shown = document_html(document)
    assert "&lt;b&gt;" in shown
    assert "<b>" not in shown


def test_tables_beside_each_other_share_lines_of_a_terminal() -> None:
    beside = Section("Heads", tables=(replace(TABLE, caption="one"), replace(TABLE, caption="two")), beside=True)
    document = replace(DOCUMENT, sections=(beside,))
    assert any(line.split() == ["first", "1", "first", "1"] for line in screen(True, document).splitlines())
    assert document_page(document, "explain").count('<div class="beside">') == 1


def test_prose_links_papers_and_escapes() -> None:
    said = prose("`x` < -0.5 in arXiv:2103.03404, not 1234.5678")
    assert said == (
        '<code>x</code> &lt; <span class="unbroken">-0.5</span> in '
        '<a href="https://arxiv.org/abs/2103.03404" rel="noreferrer">arXiv:2103.03404</a>, not 1234.5678'
    )


def test_a_drawing_function_is_imported_when_it_draws() -> None:
    draw = drawn_by("attnscope.no_such_module:chart")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        draw(300)
    assert drawn_by("builtins:dict", theme="light")(300) == {"width": 300, "theme": "light"}
