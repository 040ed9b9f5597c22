"""Induction heads: a token that occurred before attends to what followed it then, and so copies it."""

from __future__ import annotations

from collections.abc import Iterator

from attnscope.commands.scan.diagnose import Thresholds
from attnscope.commands.scan.survey.readings import fixed_pattern
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.finding import Finding, finding


@finding(
    order=120,
    reads=("induction",),
    summary="Heads in which a token that occurred before attends to the token that followed it then.",
    citation="arXiv:2209.11895, arXiv:2409.10559",
    neutral=True,
)
def induction_heads(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    yield from fixed_pattern(
        survey,
        induction_heads,
        bound=("induction", thresholds.induction),
        habit="a token that occurred before attends to what followed it then (induction heads)",
        advice=(
            "They copy from the context, and what is learned from examples in a prompt rests on them: keep them when"
            " pruning and quantising. `attnscope scan MODEL repeated` asks for nothing else."
        ),
    )
