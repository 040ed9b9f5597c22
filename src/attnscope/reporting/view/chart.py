"""The picture of a view: one head as a map of tokens by tokens."""

from __future__ import annotations

from typing import Any

from attnscope.charts.attention_map import attention_map
from attnscope.records.view import View


def chart(found: View, layer: int | None = None, head: int | None = None, part: str | None = None) -> Any:
    """One head; without a layer, the one at which the page opens. Without a head, the mean of the layer."""
    if layer is None:
        return attention_map(found, found.opened.layer, found.opened.head, part)
    return attention_map(found, layer, head, part)
