"""cite(name) -> Citation: the BibTeX of what a measure, variant, construction, explanation, finding, alarm rule or
experiment stands on; of a paper by its arXiv number; of attnscope itself where nothing is named."""

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

# What a name stands on, without importing what it names: measures and most other rooms import torch.
#
# Leaf files say their source in their decorator, `@measure(..., citation="arXiv:2303.06296")`. It is read from the file
# as text; where it is not written there as a plain string, the file is imported and its card asked. Experiments have
# their cards on record, with the papers of every claim.

ROOMS = (
    "attnscope.measures",
    "attnscope.variants",
    "attnscope.constructions",
    "attnscope.explanations",
    "attnscope.findings",
    "attnscope.alarms",
)
EXPERIMENTS = "attnscope.papers.experiments"


def known() -> tuple[str, ...]:
    """Every name that can be cited. Some are in two rooms: a finding and the alarm that foretells it."""
    return tuple(sorted({name for room in (*ROOMS, EXPERIMENTS) for name in names(room)}))


def entries_of(name: str) -> tuple[Entry, ...]:
    """What everything of this name cites, in the order in which it is said."""
    found = [one for room in ROOMS if name in names(room) for one in entries_in(said_by(room, name), name)]
    if name in names(EXPERIMENTS):
        found += [paper(number) for number in _papers_of(name)]
    return tuple({one.key: one for one in found}.values())


def entries_in(text: str, name: str) -> tuple[Entry, ...]:
    """The entries that a card's citation stands for, in its order. Words that are no known reference become a note, so
    that nothing that a card says is lost and no answer is empty."""
    found: list[tuple[int, Entry]] = []
    rest, at = text, 0
    for words in citation(text):
        if words.address is not None:
            found.append((at, paper(words.address.rpartition("/")[2])))
            rest = _blanked(rest, at, words.text)
        at += len(words.text)
    for phrase, entry in (*works().items(), (SAYS, software())):
        if (at := rest.find(phrase)) >= 0:
            found.append((at, entry))
            rest = _blanked(rest, at, phrase)
    if any(letter.isalpha() for letter in _outside_brackets(rest)) or not found:
        left = " ".join(rest.split()).strip(" ,;")
        found.append((len(text), Entry(key=f"note_{name}", title=name, howpublished=NAME, note=left)))
    return tuple(entry for _, entry in sorted(found, key=lambda one: one[0]))


def said_by(room: str, name: str) -> str:
    """The citation on a leaf's card."""
    written = _written(room, name)
    if written is not None:
        return written
    thing = getattr(importlib.import_module(f"{room}.{name}"), name)
    return str(getattr(thing, "card", thing).citation)


def _written(room: str, name: str) -> str | None:
    """In the decorator of the function that is called like its file; None where no plain string stands there."""
    spec = find_spec(f"{room}.{name}")
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    for node in ast.parse(Path(spec.origin).read_bytes()).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            for call in (one for one in node.decorator_list if isinstance(one, ast.Call)):
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
    """Without remarks such as `(the pattern)`, which say what an entry is cited for."""
    return "".join(part.rpartition(")")[2] for part in text.split("("))


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
