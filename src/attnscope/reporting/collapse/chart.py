"""The picture of a collapse: its curves, published ones beside them, bounds below."""

from __future__ import annotations

from typing import Any

from attnscope.charts.collapse_curves import collapse_chart
from attnscope.records.collapse import Collapse
from attnscope.records.published import published as published_curves


def chart(found: Collapse, *, published: str | None = None, bounds: bool = False) -> Any:
    """`published` names a model of the paper (BERT, Albert, XLNet) to draw beside it, `bounds` adds panels below."""
    theirs = None if published is None else published_curves(published, found.weights)
    return collapse_chart(found, published=theirs, bounds=bounds)
