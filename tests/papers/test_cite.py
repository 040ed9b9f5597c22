"""Every name can be cited, every paper on a card is known, and the output is BibTeX."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from typing import Any

import pytest
import yaml

import attnscope
from attnscope.commands.watch.rule import rules
from attnscope.core import registry
from attnscope.core.errors import RefusalError
from attnscope.papers import cite as sources
from attnscope.papers.cite import ALL, ROOMS, citation_of, cite, entries_in, known
from attnscope.papers.references import Entry, paper, papers, software, works
from tests.command import attnscope as command
from tests.docs.lists import ROOT
from tools.citation_file import FILE

NUMBER = re.compile(r"\d{4}\.\d{4,5}")


def parsed(bibtex: str) -> list[tuple[str, str, dict[str, str]]]:
    """Parse BibTeX independently of the writer: type, key and fields, by counting braces."""
    entries, at = [], 0
    while (at := bibtex.find("@", at)) >= 0:
        head = re.compile(r"@(\w+)\{([^\s,{}]+),").match(bibtex, at)
        assert head, bibtex[at : at + 60]
        at, fields = head.end(), {}
        while not (end := re.compile(r"\s*\}").match(bibtex, at)):
            name = re.compile(r"\s*(\w+)\s*=\s*\{").match(bibtex, at)
            assert name, bibtex[at : at + 60]
            start = at = name.end()
            depth = 1
            while depth:
                depth += {"{": 1, "}": -1}.get(bibtex[at], 0)
                at += 1
            assert name[1] not in fields
            fields[name[1]] = bibtex[start : at - 1]
            assert bibtex[at] == ","
            at += 1
        at = end.end()
        entries.append((head[1], head[2], fields))
    return entries


def cards() -> dict[str, dict[str, str]]:
    """Return the citation on every card of every package by importing all of them, which is slow."""
    return {
        "attnscope.measures": {name: one.card.citation for name, one in registry.measures().items()},
        "attnscope.variants": {name: one.card.citation for name, one in registry.variants().items()},
        "attnscope.constructions": {name: one.citation for name, one in registry.constructions().items()},
        "attnscope.explanations": {name: one.card.citation for name, one in registry.explanations().items()},
        "attnscope.findings": {name: one.citation for name, one in registry.findings().items()},
        "attnscope.alarms": {name: one.citation for name, one in rules().items()},
    }


def test_citations_read_from_files_equal_the_cards() -> None:
    assert cards() == {room: {name: citation_of(room, name) for name in cards()[room]} for room in ROOMS}
    assert {name for room in cards().values() for name in room} | set(registry.experiments()) == set(known())


def test_citation_that_is_not_a_plain_string_is_read_from_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_written", lambda room, name: None)
    for room, said in cards().items():
        for name, text in said.items():
            assert citation_of(room, name) == text


def test_every_paper_on_a_card_has_been_looked_up() -> None:
    cited = {number for room in cards().values() for text in room.values() for number in NUMBER.findall(text)}
    for one in registry.experiments().values():
        cited |= {one.paper, *(claim.paper for claim in one.claims)}
    assert cited - set(papers()) == set(), "look them up and add them to src/attnscope/papers/references.json"


@pytest.mark.parametrize("name", known())
def test_every_name_can_be_cited(name: str) -> None:
    found = parsed(str(cite(name)))
    assert found
    assert len({key for _, key, _ in found}) == len(found) == len(cite(name))
    assert all(fields["title"] for _, _, fields in found)
    numbers = {fields["eprint"] for _, _, fields in found if "eprint" in fields}
    said = {number for room in cards().values() for number in NUMBER.findall(room.get(name, ""))}
    if name in registry.experiments():
        one = registry.experiments()[name]
        said |= {one.paper, *(claim.paper for claim in one.claims)}
    assert numbers == said


def test_all_entries_are_bibtex_with_unique_keys() -> None:
    text = str(cite(ALL))
    assert text.isascii()
    found = parsed(text)
    assert len({key for _, key, _ in found}) == len(found) == 1 + len(papers()) + len(works())
    assert {fields["eprint"] for _, _, fields in found if "eprint" in fields} == set(papers())
    for kind, _, fields in found:
        assert kind in ("inproceedings", "article", "misc")
        assert (kind == "inproceedings") == ("booktitle" in fields)
        assert fields.get("author", "A").strip() == fields.get("author", "A") != ""
        assert all(author for author in fields.get("author", "A").split(" and "))


def test_papers_are_dated_by_their_number_or_later() -> None:
    for number, entry in papers().items():
        assert entry.year is not None
        assert 0 <= entry.year - (2000 + int(number[:2])) <= 2, number


def test_an_entry_by_hand() -> None:
    written = Entry("gale1963", "Words & 100% {Names}", ("Gállego, Gerard", "The Team"), 1963, eprint="2103.00001")
    assert written.bibtex() == (
        "@misc{gale1963,\n"
        r"  title = {{Words \& 100\% {Names}}}," + "\n"
        r"  author = {G{\'a}llego, Gerard and {The Team}}," + "\n"
        "  year = {1963},\n"
        "  eprint = {2103.00001},\n"
        "  archivePrefix = {arXiv},\n"
        "  url = {https://arxiv.org/abs/2103.00001},\n"
        "}"
    )


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("arXiv:2106.03764 (the pattern), this software (the method)", ["likhosherstov2023expressive", "attnscope"]),
        ("IEEE 754, arXiv:2402.17762", ["ieee754", "sun2024massive"]),
        ("the card of the measure", ["note_x"]),
        ("arXiv:2402.17762; J. Doe, A book (2030)", ["sun2024massive", "note_x"]),
        ("arXiv:2999.12345", ["arxiv299912345"]),
        ("", ["note_x"]),
    ],
)
def test_unknown_words_of_a_citation_become_a_note(text: str, keys: list[str]) -> None:
    assert [entry.key for entry in entries_in(text, "x")] == keys
    assert parsed("\n".join(entry.bibtex() for entry in entries_in(text, "x")))


def test_unknown_reference_becomes_a_note() -> None:
    (entry,) = entries_in("arXiv:2402.17762; J. Doe, A book (2030)", "x")[1:]
    assert entry.note == "J. Doe, A book (2030)"
    assert entry.authors == ()


def test_unverified_authors_are_left_out() -> None:
    assert "author" not in paper("2999.12345").bibtex()


@pytest.mark.parametrize("words", ["2103.03404", "arXiv:2103.03404", "arxiv:2103.03404v2"])
def test_a_paper_by_its_number(words: str) -> None:
    ((_, key, fields),) = parsed(str(cite(words)))
    assert key == "dong2021attention"
    assert fields["author"] == "Dong, Yihe and Cordonnier, Jean-Baptiste and Loukas, Andreas"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("entrpy", "Did you mean 'entropy'?"),
        ("2103.99999", "arXiv:2103.99999"),
        ("dong2020", "Did you mean 'dong2021'?"),
    ],
)
def test_unknown_names_are_refused(name: str, said: str) -> None:
    with pytest.raises(RefusalError, match=re.escape(said)):
        cite(name)
    done = command("cite", name)
    assert done.returncode == 2
    assert said in done.stderr


def test_attnscope_itself_is_cited_from_one_place() -> None:
    """The version is the package's, and CITATION.cff says the same."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert settings["project"]["dynamic"] == ["version"]
    assert (ROOT / settings["tool"]["hatch"]["version"]["path"]).samefile(str(attnscope.__file__))
    newest = re.search(r"^## (\S+)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    assert newest
    ((_, _, fields),) = parsed(str(attnscope.cite()))
    file: dict[str, Any] = yaml.safe_load(FILE.read_text("utf-8"))
    assert fields["version"] == file["version"] == attnscope.__version__ == newest[1], "run tools/citation_file.py"
    assert fields["title"] == f"{{{file['title']}}}"
    assert [author["name"] for author in file["authors"]] == list(software().authors)
    assert {"cff-version", "message", "title", "authors"} <= set(file)  # what the format asks for


def test_a_citation_in_a_notebook_is_escaped() -> None:
    assert attnscope.cite("2508.10925")._repr_html_().startswith("<pre>@misc{openai2025gpt,")
    assert r"120b \&amp; gpt" in attnscope.cite("2508.10925")._repr_html_()


def test_command_prints_what_its_twin_returns_and_imports_nothing_heavy() -> None:
    assert command("cite", "sink").stdout == f"{attnscope.cite('sink')}\n"
    assert json.loads(command("cite", "sink", "--json").stdout) == attnscope.cite("sink").to_json()
    program = (
        "import sys, attnscope\n"
        "for name in (None, 'all', '2103.03404', 'entropy', 'performer', 'dong2021', 'joint', 'relevance', 'sink'):\n"
        "    assert str(attnscope.cite(name))\n"
        "heavy = {'torch', 'transformers', 'pandas', 'altair', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
