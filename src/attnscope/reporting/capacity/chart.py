"""The picture of a capacity: width against n and against k, one line per construction, bounds dashed."""

from __future__ import annotations

from typing import Any

from attnscope.charts.capacity_curves import capacity_curves
from attnscope.records.capacity import Capacity
from attnscope.reporting.capacity.words import seed_words


def chart(found: Capacity) -> Any:
    """With a title and what a page says in words around it."""
    subtitle = (
        f"{found.dtype}, worst row: ratio error {found.ratio_error:g}, leak {found.leak:g}; "
        f"unions of k random permutations, median over {seed_words(found)}",
        f"far above: the theorem of arXiv:2106.03764 asks for {found.theorem_width:,} "
        f"at n = {found.n:,}, k = {found.k}",
    )
    return capacity_curves(found, title="How wide must a head be?", subtitle=subtitle)
