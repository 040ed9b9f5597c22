"""One measure of both surveys against depth."""

from __future__ import annotations

from typing import Any

from attnscope.charts.comparison import comparison_profile
from attnscope.records.comparison import Comparison
from attnscope.reporting.survey.chart import card_and_place
from attnscope.reporting.survey.words import names


def chart(found: Comparison, measure: str | None = None, *, stack: str | None = None, site: str | None = None) -> Any:
    """The lines of both surveys; without `measure` that of the largest change."""
    if measure is None and found.changes:
        top = found.changes[0]
        measure, stack, site = top.measure, stack or top.stack, site or top.site
    card, place = card_and_place(found.first, measure, stack, site)
    told = names(found.first, found.second)
    return comparison_profile(found.first.table(), found.second.table(), card, names=told, **place)
