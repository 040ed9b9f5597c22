"""Heads in which each token attends to the one before it: the first half of an induction circuit."""

from __future__ import annotations

from collections.abc import Iterator

from attnscope.commands.scan.diagnose import Thresholds
from attnscope.commands.scan.survey.readings import fixed_pattern
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.finding import Finding, finding


@finding(
    order=110,
    reads=("previous_token",),
    summary="Heads in which tokens mostly attend to the one before.",
    citation="arXiv:2409.10559",
    severity="note: it describes what heads do",
    neutral=True,
)
def previous_token_heads(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    yield from fixed_pattern(
        survey,
        previous_token_heads,
        bound=("previous_mass", thresholds.previous_mass),
        habit="tokens mostly attend to the one before",
        advice=(
            "Together with a later head it can form an induction circuit: before pruning it, check that the model can "
            "still copy from the context."
        ),
    )
