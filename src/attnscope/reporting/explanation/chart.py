"""The picture of an explanation: tokens by methods."""

from __future__ import annotations

from typing import Any

from attnscope.charts.explanation_map import explanation_map
from attnscope.records.explanation import Explanation


def chart(found: Explanation) -> Any:
    """How much every token did by each method, as a share of the largest."""
    return explanation_map(found)
