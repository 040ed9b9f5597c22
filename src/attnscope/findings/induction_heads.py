"""Induction heads: a repeated token attends to the token that followed its earlier occurrence, and copies it."""

from __future__ import annotations

from collections.abc import Iterator

from attnscope.commands.scan.diagnose import Thresholds
from attnscope.commands.scan.survey.readings import fixed_pattern
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.finding import Finding, finding


@finding(
    order=120,
    reads=("induction",),
    summary="Heads in which a repeated token attends to the token that followed its earlier occurrence.",
    citation="arXiv:2209.11895, arXiv:2409.10559",
    severity="note: it describes what heads do",
    neutral=True,
)
def induction_heads(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    yield from fixed_pattern(
        survey,
        induction_heads,
        bound=("induction", thresholds.induction),
        habit="a repeated token attends to what followed its earlier occurrence (induction heads)",
        advice=(
            "They copy from the context, and in-context learning depends on them: keep them when pruning and "
            "quantising. `attnscope scan MODEL repeated` tests for them alone."
        ),
    )
