"""Pieces of Markdown that several pages of the reference are made of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")


def linked(citation: str) -> str:
    """A citation whose arXiv numbers can be clicked."""
    return ARXIV.sub(r"[arXiv:\1](https://arxiv.org/abs/\1)", citation)


def cell(words: str) -> str:
    """One line, without bars that would end the cell."""
    return " ".join(words.split()).replace("|", "\\|")


def prose(words: str) -> str:
    """Words in which brackets, stars and signs of smaller are meant as such."""
    return re.sub(r"([*_<\[\]])", r"\\\1", words)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    lines += [f"| {' | '.join(map(cell, row))} |" for row in rows]
    return "\n".join(lines) + "\n"


def code(words: object) -> str:
    """As it is typed; backticks inside would end it, and none of ours has any."""
    return f"`{words}`"


def contents(pages: Iterable[str], *, hidden: bool = False) -> str:
    """The part of the navigation that lies under a page."""
    return "\n".join(["```{toctree}", *([":hidden:"] if hidden else []), "", *pages, "```", ""])
