"""Cards of measures, in words: pages and the catalog say the same."""

from __future__ import annotations

from attnscope.core.card import Card
from attnscope.core.numerals import numeral


def card_range(card: Card) -> str:
    """`0 to 1`, `from 0`, `any number`."""
    low, high = (numeral(v) if abs(v) != float("inf") else None for v in (card.low, card.high))
    if low is None or high is None:
        return "any number" if low is None and high is None else f"from {low}" if high is None else f"up to {high}"
    return f"{low} to {high}"
