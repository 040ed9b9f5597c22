"""Sees the future: outputs of a causal model at earlier tokens move when later tokens are replaced.

The test is exact. Under a causal mask, states at the first half of a window depend on these tokens alone, so that they
are equal up to rounding, whatever follows. A model that sees the future has a low loss in training and is useless when
it generates, because then there is no future to see.
"""

from __future__ import annotations

from collections.abc import Iterator

from attnscope.commands.scan.diagnose import Thresholds
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.finding import Finding, finding
from attnscope.core.words import number, within


@finding(
    order=5,
    reads=(),
    summary="Outputs of a causal model at earlier tokens depend on later tokens.",
    citation="a test of one forward pass; see docs/scan.md",
    severity="wrong: the loss of a model that sees what it predicts means nothing",
)
def sees_the_future(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    for exposure in () if survey.trial is None else survey.trial.exposures:
        if not exposure.moved > exposure.rounding or exposure.layer is None:
            continue
        yield Finding(
            kind=sees_the_future.name,
            severity="wrong",
            stack=exposure.stack,
            layers=(exposure.layer,),
            heads=(),
            sentence=(
                f"The model sees later tokens from block {exposure.layer}"
                f"{within(exposure.stack, '', len(survey.stacks) > 1)} on: replacing the second half of a text moves"
                f" states in the first half by up to {number(exposure.moved)} of the largest state. Rounding explains"
                f" {number(exposure.rounding)}."
            ),
            value=exposure.moved,
            threshold=exposure.rounding,
            threshold_name="rounding",
            citation=sees_the_future.citation,
            advice=(
                "Check the attention mask of this block: it is missing, transposed, or applied after the softmax. Until"
                " it is mended, do not compare the loss of this model with others."
            ),
            details={"block": exposure.layer},
        )
