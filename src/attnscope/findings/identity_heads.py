"""Heads in which each token attends to itself: nothing moves between tokens."""

from __future__ import annotations

from collections.abc import Iterator

from attnscope.commands.scan.diagnose import Thresholds
from attnscope.commands.scan.survey.readings import fixed_pattern
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.finding import Finding, finding


@finding(
    order=100,
    reads=("self_attention",),
    summary="Heads in which tokens mostly attend to themselves.",
    citation="arXiv:2402.02098",
    severity="note: it describes what heads do",
    neutral=True,
)
def identity_heads(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    yield from fixed_pattern(
        survey,
        identity_heads,
        bound=("identity_mass", thresholds.identity_mass),
        habit="tokens mostly attend to themselves",
        advice=(
            "Such a head moves nothing between tokens: its value and output projections act like a small MLP. It is a "
            "candidate for pruning."
        ),
    )
