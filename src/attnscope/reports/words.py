"""Text that pages and terminals share: verdicts, sources as links, ranges, and whether sequences begin with BOS."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from attnscope.core.card import Card
from attnscope.core.words import numeral

Level = Literal["calm", "note", "warning", "critical"]


@dataclass(frozen=True)
class Verdict:
    """The first sentence of a record, and its level, which is its colour on pages."""

    level: Level
    sentence: str


_ARXIV = re.compile(r"(?:arXiv:\s*)?(\d{4}\.\d{4,5})(?:v\d+)?", re.IGNORECASE)


class Words(NamedTuple):
    """A piece of text, and its link, if it has one."""

    text: str
    address: str | None = None


def listed(words: Sequence[str]) -> str:
    """Return `a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def citation(text: str) -> tuple[Words, ...]:
    """Return a source with its arXiv numbers as links. Links are built from digits only and lead to arXiv."""
    words: list[Words] = []
    end = 0
    for match in _ARXIV.finditer(text):
        words += [Words(text[end : match.start()]), Words(match[0], f"https://arxiv.org/abs/{match[1]}")]
        end = match.end()
    return tuple(w for w in (*words, Words(text[end:])) if w.text)


def card_range(card: Card) -> str:
    """Return `0 to 1`, `from 0` or `any number`."""
    low, high = (numeral(v) if abs(v) != float("inf") else None for v in (card.low, card.high))
    if low is None or high is None:
        return "any number" if low is None and high is None else f"from {low}" if high is None else f"up to {high}"
    return f"{low} to {high}"


def beginning_words(provenance: Mapping[str, Any]) -> tuple[str, ...]:
    """Return `BOS first (the tokenizer adds it)` or `no BOS (the tokenizer has none)`; nothing if unknown."""
    found = provenance.get("bos")
    if not isinstance(found, Mapping) or "begins" not in found:
        return ()
    if not isinstance(found["begins"], bool):  # the survey was merged from sequences with and without BOS
        return ("with and without BOS",)
    why = found.get("why")
    reason = "; ".join(map(str, why)) if isinstance(why, list) else why
    said = "BOS first" if found["begins"] else "no BOS"
    return (f"{said} ({reason})" if reason else said,)
