"""The picture of a model's head widths."""

from __future__ import annotations

from typing import Any

from attnscope.charts.head_width_map import head_width_map
from attnscope.records.head_widths import HeadWidths
from attnscope.reporting.head_widths.words import accuracy_words, title_words


def chart(found: HeadWidths) -> Any:
    """With a title and what a page says in words around it."""
    subtitle = (title_words(found), accuracy_words(found))
    return head_width_map(found, title="How wide must these heads be?", subtitle=subtitle)
