"""The references that attnscope knows: `references.json`, papers by arXiv number, and works that have none.

Each was looked up. A paper whose authors could not be verified has an empty list of authors and no author in BibTeX;
one that is not in the file at all is cited by its number alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from attnscope import __version__

# One entry of a bibliography, as BibTeX and as data.

# BibTeX reads bytes: letters outside ASCII are written as LaTeX has them, so that sorting and old styles work.
_LETTERS = {
    **{"á": r"{\'a}", "à": r"{\`a}", "ä": r"{\"a}", "ç": r"{\c c}", "é": r"{\'e}", "è": r"{\`e}", "í": r"{\'i}"},
    **{"ł": r"{\l}", "ñ": r"{\~n}", "ó": r"{\'o}", "ö": r"{\"o}", "ø": r"{\o}", "š": r"{\v s}", "ß": r"{\ss}"},
    **{"ú": r"{\'u}", "ü": r"{\"u}", "ž": r"{\v z}"},
    **{mark: f"\\{mark}" for mark in "&%#_$"},
}


@dataclass(frozen=True)
class Entry:
    """Authors are `Last, First`, or a name without a comma for a group; none where they could not be verified."""

    key: str
    title: str
    authors: tuple[str, ...] = ()
    year: int | None = None
    booktitle: str | None = None
    journal: str | None = None
    version: str | None = None
    howpublished: str | None = None
    note: str | None = None
    eprint: str | None = None

    @property
    def kind(self) -> str:
        return "inproceedings" if self.booktitle else "article" if self.journal else "misc"

    @property
    def url(self) -> str | None:
        return f"https://arxiv.org/abs/{self.eprint}" if self.eprint else None

    def bibtex(self) -> str:
        fields = {
            "title": f"{{{_latex(self.title)}}}",  # twice in braces: styles change capitals, and names are no words
            "author": " and ".join(_latex(one) if "," in one else f"{{{_latex(one)}}}" for one in self.authors),
            "booktitle": _latex(self.booktitle),
            "journal": _latex(self.journal),
            "year": "" if self.year is None else str(self.year),
            "version": _latex(self.version),
            "howpublished": _latex(self.howpublished),
            "note": _latex(self.note),
            "eprint": self.eprint,
            "archivePrefix": "arXiv" if self.eprint else None,
            "url": self.url,
        }
        lines = [f"  {name} = {{{value}}}," for name, value in fields.items() if value]
        return "\n".join([f"@{self.kind}{{{self.key},", *lines, "}"])

    def to_json(self) -> dict[str, Any]:
        said = {
            "key": self.key,
            "type": self.kind,
            "title": self.title,
            "authors": list(self.authors),
            "year": self.year,
            "booktitle": self.booktitle,
            "journal": self.journal,
            "version": self.version,
            "howpublished": self.howpublished,
            "note": self.note,
            "eprint": self.eprint,
            "url": self.url,
        }
        return {name: value for name, value in said.items() if value is not None}


def _latex(text: str | None) -> str:
    return "".join(_LETTERS.get(letter, letter) for letter in text or "")


@cache
def papers() -> dict[str, Entry]:
    """By arXiv number."""
    return {number: _entry(said, eprint=number) for number, said in _read()["arxiv"].items()}


@cache
def works() -> dict[str, Entry]:
    """By the words with which cards name them."""
    return {said["says"]: _entry({k: v for k, v in said.items() if k != "says"}) for said in _read()["works"]}


def paper(number: str) -> Entry:
    """The entry of a paper that a card cites. A number that nobody has looked up yet is still an answer."""
    return papers().get(number) or Entry(key=f"arxiv{number.replace('.', '')}", title=f"arXiv:{number}", eprint=number)


@cache
def _read() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(files("attnscope.papers").joinpath("references.json").read_text("utf-8"))
    return found


def _entry(said: dict[str, Any], eprint: str | None = None) -> Entry:
    return Entry(**{**said, "authors": tuple(said["authors"]), "eprint": eprint})


# How attnscope itself is cited: the one place. `tools/citation_file.py` writes CITATION.cff from here.

NAME = "attnscope"
AUTHORS = ("The attnscope contributors",)
TITLE = "attnscope: what attention in a transformer does, and whether depth is destroying it"
LICENSE = "Apache-2.0"
# What cards say where the method is attnscope's own.
SAYS = "this software"


def software() -> Entry:
    # No year: versions are what differ, and none of them carries a date.
    return Entry(key=NAME, title=TITLE, authors=AUTHORS, version=__version__, howpublished="Computer software")


def citation_file() -> str:
    """CITATION.cff (Citation File Format 1.2.0), which code hosts and reference managers read. JSON is YAML."""
    entry = software()
    lines = [
        "cff-version: 1.2.0",
        "message: If you use attnscope in your work, please cite it, and the papers that `attnscope cite NAME` gives.",
        "type: software",
        f"title: {json.dumps(entry.title)}",
        f"version: {json.dumps(entry.version)}",
        f"license: {LICENSE}",
        "authors:",
        *(f"  - name: {json.dumps(author)}" for author in entry.authors),
    ]
    return "\n".join(lines) + "\n"
