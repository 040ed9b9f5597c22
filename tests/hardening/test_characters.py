"""Control characters, escapes and half characters in names and texts: shown as symbols, never interpreted."""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import attnscope
from attnscope.cli import main
from attnscope.cli import output as streams
from attnscope.cli.files import text_or_file
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.errors import RefusalError
from attnscope.core.words import clean, drawable, replace_surrogates
from attnscope.reports.export import render
from attnscope.reports.terminal import print_record
from tests.specimens import TEXT, byte_tokenizer, save_specimen, tiny_llama

WILD = "a\x0cb\x1b[31mc\uffffd\ud800e\x00f\x7fg\x9bh\u202ei\tj\nk</script>"
ANY_TEXT = st.text(st.characters())


def is_xml(text: str) -> bool:
    """Return whether all characters are allowed in XML 1.0 (U+007F is, although no renderer shows it)."""
    return all(c in "\t\n\r" or " " <= c <= "\ud7ff" or "\ue000" <= c <= "\ufffd" or c > "\uffff" for c in text)


@given(ANY_TEXT)
def test_drawable_text_is_valid_xml_and_otherwise_unchanged(text: str) -> None:
    shown = drawable(text)
    assert is_xml(shown)
    assert len(shown) == len(text)
    assert all(a == b or not is_xml(a) or a in "\t\n\r\x7f\u2028\u2029" for a, b in zip(text, shown, strict=True))


@given(ANY_TEXT)
def test_text_for_a_terminal_is_printable(text: str) -> None:
    assert clean(text).isprintable()
    assert replace_surrogates(text).encode().decode() == replace_surrogates(text)


def test_all_strings_of_a_document_are_drawable() -> None:
    made = drawable({WILD: [WILD, {"x": (WILD, 1, None, 2.5, True)}]})
    ((key, (first, inner)),) = made.items()
    assert all(map(is_xml, (key, first, inner["x"][0])))
    assert inner["x"][1:] == [1, None, 2.5, True]


@pytest.mark.parametrize("suffix", [".svg", ".png", ".html", ".json"])
def test_the_renderer_survives(suffix: str) -> None:
    """Render each character that once crashed the process, and all together, as data, title and field name."""
    values = [{"a": text, WILD: 1} for text in (*WILD, WILD)]
    document: dict[str, Any] = {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "title": {"text": [WILD, WILD]},
        "data": {"values": values},
        "mark": "bar",
        "encoding": {"x": {"field": "a", "type": "nominal", "title": WILD}, "description": {"field": "a"}},
    }
    assert len(render(document, suffix)) > 100


def obeyed(text: str) -> list[str]:
    return [c for c in text if not c.isprintable() and c != "\n"]


def printed(show: Any) -> str:
    """Return the output on a terminal without colours, where every escape must come from a name."""
    console = Console(file=io.StringIO(), width=80, no_color=True, force_terminal=False)
    show(console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture(scope="module")
def survey(tmp_path_factory: pytest.TempPathFactory) -> Survey:
    folder = tmp_path_factory.mktemp("models") / "wild \x1b[31m\x0c name"
    save_specimen(folder.with_name("good"))
    shutil.move(folder.with_name("good"), folder)
    return attnscope.scan(str(folder), [TEXT], samples=2, max_tokens=16, measures="entropy")


def test_a_folder_name_full_of_escapes(survey: Survey, tmp_path: Path) -> None:
    said = printed(lambda console: print_record(survey, files={"Report": Path(WILD)}, console=console))
    assert "wild" in said
    assert not obeyed(said)
    attnscope.report(survey, tmp_path / "report.html")


def test_a_card_full_of_escapes(survey: Survey, tmp_path: Path) -> None:
    """Use a card as JSON can hold it, with half characters."""
    cards = {name: replace(card, title=WILD, summary=WILD, unit=WILD) for name, card in survey.cards.items()}
    (tmp_path / "survey.json").write_text(json.dumps(replace(survey, cards=cards).to_json()))
    wild = Survey.load(tmp_path / "survey.json")
    assert not obeyed(printed(lambda console: print_record(wild, console=console)))
    attnscope.report(wild, tmp_path / "report.html")


def test_a_text_full_of_escapes(tmp_path: Path) -> None:
    text = "a\x0c\x1b[3m\uffff"
    report = attnscope.paths(tiny_llama(), text, tokenizer=byte_tokenizer(), draws=0, mlp=False)
    assert not obeyed(printed(lambda console: print_record(report, files={"Report": Path(WILD)}, console=console)))
    report.write_page(tmp_path / "paths.html")
    attnscope.load(report.save(tmp_path / "paths.json"))


def test_half_characters_are_refused_in_python_and_replaced_on_the_command_line() -> None:
    with pytest.raises(RefusalError, match="half a character"):
        attnscope.paths(tiny_llama(), "a\ud800", tokenizer=byte_tokenizer())
    with pytest.raises(RefusalError, match="half a character"):
        attnscope.paths(tiny_llama(), "a text", target="\udcff", tokenizer=byte_tokenizer())
    assert text_or_file("caf\udce9") == "caf\ufffd"


def test_certificate_of_a_pattern_with_escapes_in_its_name(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pattern = replace(attnscope.generate("permutation", 4, 1), name=WILD)
    compiled = attnscope.compile(pattern)
    compiled.save(tmp_path / "head.safetensors")
    print_record(compiled, files={"Head": Path(WILD), "Chart": Path(WILD)})
    assert not obeyed(capsys.readouterr().out)


def test_refusals_are_shown_without_escapes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> None:
        raise RefusalError(f"There is no file {WILD}: give another.")

    monkeypatch.setattr(main, "app", refuse)
    assert main._code() == streams.REFUSED
    said = capsys.readouterr().err
    assert said.startswith("attnscope: There is no file")
    assert not obeyed(said)
