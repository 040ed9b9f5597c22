"""cite(name) -> Citation: the BibTeX entries for a named part of attnscope, for a paper, or for attnscope itself.

Leaf files name their source in their decorator, `@measure(..., citation="arXiv:2303.06296")`. The decorator is parsed
without importing the file, because most rooms import torch; the file is imported only if the citation is not a plain
string. Experiments name their papers on their cards.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attnscope.core.card import names
from attnscope.core.errors import RefusalError, nearest
from attnscope.papers.references import NAME, SAYS, Entry, paper, papers, software, works
from attnscope.reports.words import citation

ROOMS = tuple(
    f"attnscope.{room}" for room in ("measures", "variants", "constructions", "explanations", "findings", "alarms")
)
EXPERIMENTS = "attnscope.papers.experiments"
ALL = "all"
_NUMBER = re.compile(r"(?:arxiv:\s*)?(\d{4}\.\d{4,5})(?:v\d+)?", re.IGNORECASE)


def known() -> tuple[str, ...]:
    """Return every name that can be cited. One name can be both a finding and the alarm that predicts it."""
    return tuple(sorted({name for room in (*ROOMS, EXPERIMENTS) for name in names(room)}))


def entries_of(name: str) -> tuple[Entry, ...]:
    """Return the entries cited by everything that has this name, in order and without repeats."""
    entries = [entry for room in ROOMS if name in names(room) for entry in entries_in(citation_of(room, name), name)]
    if name in names(EXPERIMENTS):
        entries += [paper(number) for number in _papers_of(name)]
    return tuple({entry.key: entry for entry in entries}.values())


def entries_in(text: str, name: str) -> tuple[Entry, ...]:
    """Return the entries of a card's citation, in order.

    Text that is not a known reference becomes a note, so that every citation has an entry.
    """
    entries: list[tuple[int, Entry]] = []
    rest, at = text, 0
    for words in citation(text):
        if words.address is not None:
            entries.append((at, paper(words.address.rpartition("/")[2])))
            rest = _blanked(rest, at, words.text)
        at += len(words.text)
    for phrase, entry in (*works().items(), (SAYS, software())):
        if (at := rest.find(phrase)) >= 0:
            entries.append((at, entry))
            rest = _blanked(rest, at, phrase)
    if any(letter.isalpha() for letter in _outside_brackets(rest)) or not entries:
        left = " ".join(rest.split()).strip(" ,;")
        entries.append((len(text), Entry(key=f"note_{name}", title=name, howpublished=NAME, note=left)))
    return tuple(entry for _, entry in sorted(entries, key=lambda at_entry: at_entry[0]))


def citation_of(room: str, name: str) -> str:
    """Return the citation given on a leaf's card."""
    written = _written(room, name)
    if written is not None:
        return written
    leaf = getattr(importlib.import_module(f"{room}.{name}"), name)
    return str(getattr(leaf, "card", leaf).citation)


def _written(room: str, name: str) -> str | None:
    """Return the citation in the decorator of the file's main function, or None if it is not a plain string."""
    spec = find_spec(f"{room}.{name}")
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    for node in ast.parse(Path(spec.origin).read_bytes()).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            for call in (decorator for decorator in node.decorator_list if isinstance(decorator, ast.Call)):
                for word in call.keywords:
                    if word.arg == "citation" and isinstance(word.value, ast.Constant):
                        return str(word.value.value)
    return None


def _papers_of(experiment: str) -> tuple[str, ...]:
    from attnscope.papers.cards import cards

    card = cards()[experiment]
    return tuple(dict.fromkeys((card.paper, *(claim.paper for claim in card.claims))))


def _blanked(text: str, at: int, stretch: str) -> str:
    return text[:at] + " " * len(stretch) + text[at + len(stretch) :]


def _outside_brackets(text: str) -> str:
    """Remove parenthesised remarks such as `(the pattern)`."""
    return "".join(part.rpartition(")")[2] for part in text.split("("))


@dataclass(frozen=True)
class Citation:
    """A list of bibliography entries; `str` formats them as BibTeX."""

    name: str
    entries: tuple[Entry, ...]

    def __str__(self) -> str:
        return "\n\n".join(entry.bibtex() for entry in self.entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def to_json(self) -> list[dict[str, Any]]:
        return [entry.to_json() for entry in self.entries]


def cite(name: str | None = None) -> Citation:
    """Return the BibTeX entries for a name. This needs no torch.

    Parameters
    ----------
    name : str, optional
        A measure, variant, construction, explanation, finding, alarm or experiment, an arXiv number, or "all".
        Default: attnscope itself.

    Returns
    -------
    Citation
        The entries; `str` gives BibTeX.

    Raises
    ------
    RefusalError
        If nothing has this name.

    Examples
    --------
    >>> [entry.key for entry in attnscope.cite("entropy").entries]
    ['zhai2023stabilizing']
    """
    if name is None or name == NAME:
        return Citation(NAME, (software(),))
    if name == ALL:
        return Citation(ALL, (software(), *papers().values(), *works().values()))
    if number := _NUMBER.fullmatch(name.strip()):
        return _by_number(number[1])

    choices = known()
    if name not in choices:
        raise RefusalError(f"There is nothing called '{name}' to cite.{nearest(name, (*choices, ALL))}")
    return Citation(name, entries_of(name))


def _by_number(number: str) -> Citation:
    if number not in papers():
        raise RefusalError(
            f"arXiv:{number} is not a paper that attnscope cites: give the number of one that it does, or a name."
        )
    return Citation(number, (papers()[number],))
