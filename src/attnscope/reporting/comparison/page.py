"""The page of a comparison: the report of the first survey with a section that sets the second beside it."""

from __future__ import annotations

from attnscope.records.comparison import Comparison
from attnscope.reporting.survey.page import render as render_survey


def render(found: Comparison) -> str:
    return render_survey(found.first, other=found.second, thresholds=found.thresholds)
