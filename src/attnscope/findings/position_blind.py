"""Position blind: the states of a model with positions stay the same when positions are reversed.

The test is exact: the argument `position_ids` is reversed, or for a model without a causal mask the order of tokens is,
and the last states are compared. If nothing moves, positions are not used at all.
"""

from __future__ import annotations

from collections.abc import Iterator

from attnscope.commands.scan.diagnose import Thresholds
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.finding import Finding, finding
from attnscope.core.words import number


@finding(
    order=7,
    reads=(),
    summary="States do not move when position numbers are reversed.",
    citation="a test of one forward pass; see docs/scan.md",
    severity="wrong: the model has positions and does not use them",
)
def position_blind(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    trial = survey.trial
    if trial is None or not trial.order <= trial.order_rounding:  # NaN: not tried
        return
    yield Finding(
        kind=position_blind.name,
        severity="wrong",
        stack=survey.stacks[-1] if survey.stacks else "",
        layers=(),
        heads=(),
        sentence=(
            f"The model does not use positions: reversing them moves its last states by {number(trial.order)} of their"
            f" norm. Rounding explains {number(trial.order_rounding)}."
        ),
        value=trial.order,
        threshold=trial.order_rounding,
        threshold_name="rounding",
        citation=position_blind.citation,
        advice=(
            "Check that position embeddings or rotations are loaded and applied: a table of zeros, or a rotation with"
            " frequency 0, has this effect. If the model was trained without positions, ignore this."
        ),
        details={},
    )
