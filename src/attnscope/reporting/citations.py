"""Sources as text with links: arXiv numbers lead to their papers, and nothing else leads anywhere."""

from __future__ import annotations

import re
from typing import NamedTuple

_ARXIV = re.compile(r"(?:arXiv:\s*)?(\d{4}\.\d{4,5})(?:v\d+)?", re.IGNORECASE)


class Words(NamedTuple):
    """A stretch of text, and where it leads, if anywhere."""

    text: str
    address: str | None = None


def citation(text: str) -> tuple[Words, ...]:
    """A source with its arXiv numbers as links. Only arXiv addresses are made, and only from digits."""
    words: list[Words] = []
    end = 0
    for match in _ARXIV.finditer(text):
        words += [Words(text[end : match.start()]), Words(match[0], f"https://arxiv.org/abs/{match[1]}")]
        end = match.end()
    return tuple(w for w in (*words, Words(text[end:])) if w.text)
