"""One entry of a bibliography, as BibTeX and as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
