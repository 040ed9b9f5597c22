"""cite(name) -> Citation: the BibTeX of what a measure, variant, construction, explanation, finding, alarm rule or
experiment stands on; of a paper by its arXiv number; of attnscope itself where nothing is named."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import Any

from attnscope.citing.entry import Entry
from attnscope.citing.references import papers, works
from attnscope.citing.software import NAME, software
from attnscope.core.errors import RefusalError, nearest

ALL = "all"
_NUMBER = re.compile(r"(?:arxiv:\s*)?(\d{4}\.\d{4,5})(?:v\d+)?", re.IGNORECASE)


@dataclass(frozen=True)
class Citation:
    """Entries of a bibliography; `str` of it is BibTeX."""

    name: str
    entries: tuple[Entry, ...]

    def __str__(self) -> str:
        return "\n\n".join(one.bibtex() for one in self.entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def to_json(self) -> list[dict[str, Any]]:
        return [one.to_json() for one in self.entries]


def cite(name: str | None = None) -> Citation:
    """`cite("entropy")`, `cite("2103.03404")`, `cite("all")`, or `cite()` for attnscope itself. Needs no torch."""
    if name is None or name == NAME:
        return Citation(NAME, (software(),))
    if name == ALL:
        return Citation(ALL, (software(), *papers().values(), *works().values()))
    if number := _NUMBER.fullmatch(name.strip()):
        return _by_number(number[1])
    from attnscope.citing.sources import entries_of, known

    choices = known()
    if name not in choices:
        raise RefusalError(f"There is nothing called '{name}' to cite.{nearest(name, (*choices, ALL))}")
    return Citation(name, entries_of(name))


def _by_number(number: str) -> Citation:
    if number not in papers():
        raise RefusalError(
            f"arXiv:{number} is no paper that attnscope stands on: give the number of one that a card cites, or a name."
        )
    return Citation(number, (papers()[number],))
