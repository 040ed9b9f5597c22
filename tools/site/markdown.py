"""Markdown helpers for the pages of the reference."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")


def linked(citation: str) -> str:
    """Return a citation with its arXiv numbers as links."""
    return ARXIV.sub(r"[arXiv:\1](https://arxiv.org/abs/\1)", citation)


def cell(words: str) -> str:
    """Return text as a table cell: one line, with bars escaped."""
    return " ".join(words.split()).replace("|", "\\|")


def prose(words: str) -> str:
    """Escape brackets, stars and less-than signs."""
    return re.sub(r"([*_<\[\]])", r"\\\1", words)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    lines += [f"| {' | '.join(map(cell, row))} |" for row in rows]
    return "\n".join(lines) + "\n"


def code(words: object) -> str:
    """Return text as inline code. It must not contain backticks."""
    return f"`{words}`"


def contents(pages: Iterable[str], *, hidden: bool = False) -> str:
    """Return the navigation below a page."""
    return "\n".join(["```{toctree}", *([":hidden:"] if hidden else []), "", *pages, "```", ""])
