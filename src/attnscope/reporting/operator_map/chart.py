"""The picture of an operator's map."""

from __future__ import annotations

from typing import Any

from attnscope.charts.operator_map import operator_map
from attnscope.records.operator_map import OperatorMap


def chart(found: OperatorMap) -> Any:
    """Rows of the output by tokens, as shares of each row's largest number."""
    return operator_map(found)
