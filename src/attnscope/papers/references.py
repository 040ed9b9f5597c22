"""The references of attnscope: `references.json` holds papers by arXiv number, and works that have none.

Every entry was checked against its source. A paper whose authors could not be verified has no authors. A paper that is
not in the file is cited by its number alone.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from attnscope import __version__

NAME = "attnscope"
AUTHORS = ("The attnscope contributors",)
TITLE = "attnscope: what attention in a transformer does, and whether depth is destroying it"
LICENSE = "Apache-2.0"
SAYS = "this software"  # the words by which a card cites attnscope itself

# BibTeX reads bytes: letters outside ASCII become LaTeX commands, so that sorting and old styles work.
_LETTERS = {
    **{"á": r"{\'a}", "à": r"{\`a}", "ä": r"{\"a}", "ç": r"{\c c}", "é": r"{\'e}", "è": r"{\`e}", "í": r"{\'i}"},
    **{"ł": r"{\l}", "ñ": r"{\~n}", "ó": r"{\'o}", "ö": r"{\"o}", "ø": r"{\o}", "š": r"{\v s}", "ß": r"{\ss}"},
    **{"ú": r"{\'u}", "ü": r"{\"u}", "ž": r"{\v z}"},
    **{mark: f"\\{mark}" for mark in "&%#_$"},
}


@dataclass(frozen=True)
class Entry:
    """A bibliography entry. An author is `Last, First`, or a group's name without a comma; none if unverified."""

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
            "title": f"{{{_latex(self.title)}}}",  # double braces keep capitals, which some styles would change
            "author": " and ".join(_latex(name) if "," in name else f"{{{_latex(name)}}}" for name in self.authors),
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
        words = asdict(self)
        first = {"key": words.pop("key"), "type": self.kind, "title": words.pop("title")}
        fields = {**first, **words, "authors": list(self.authors), "url": self.url}
        return {name: value for name, value in fields.items() if value is not None}


def _latex(text: str | None) -> str:
    return "".join(_LETTERS.get(letter, letter) for letter in text or "")


@cache
def papers() -> dict[str, Entry]:
    """Return the papers by arXiv number."""
    return {number: _entry(fields, eprint=number) for number, fields in _read()["arxiv"].items()}


@cache
def works() -> dict[str, Entry]:
    """Return the works that have no arXiv number, by the words with which cards cite them."""
    return {fields["says"]: _entry({k: v for k, v in fields.items() if k != "says"}) for fields in _read()["works"]}


def paper(number: str) -> Entry:
    """Return the entry of the paper with this arXiv number; if it is not in the file, the entry has only the number."""
    return papers().get(number) or Entry(key=f"arxiv{number.replace('.', '')}", title=f"arXiv:{number}", eprint=number)


@cache
def _read() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(files("attnscope.papers").joinpath("references.json").read_text("utf-8"))
    return content


def _entry(fields: dict[str, Any], eprint: str | None = None) -> Entry:
    return Entry(**{**fields, "authors": tuple(fields["authors"]), "eprint": eprint})


def software() -> Entry:
    """Return the entry for attnscope itself. It has no year, because versions carry no date."""
    return Entry(key=NAME, title=TITLE, authors=AUTHORS, version=__version__, howpublished="Computer software")


def citation_file() -> str:
    """Return the text of CITATION.cff (format 1.2.0). Its strings are written as JSON, which is valid YAML."""
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
