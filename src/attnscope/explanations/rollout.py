"""Attention rollout (arXiv:2005.00928): attention followed through all layers, half of every token staying where it is.

    r <- r rownorm(mean over heads of A + I), from the last layer to the first

It knows nothing of the answer: for every target it says the same. Rows that sum to less than 1 (a learned sink takes
the rest) are divided by what they have.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from attnscope.core.explanation import explanation
from attnscope.matrix.products import mean_pattern_from_left, mean_row_mass
from attnscope.matrix.relevance import AttentionCall


@explanation(
    title="Attention rollout",
    summary="Attention of all layers multiplied, with the skip; the answer plays no part in it.",
    citation="arXiv:2005.00928",
    formula="r <- r rownorm(mean over heads of A + I)",
    cost="one forward pass",
    signed=False,
    stacks="one",
    adds_up="1, with the token itself",
)
def rollout(
    calls: Sequence[AttentionCall], start: dict[str, Float[Tensor, " token"]]
) -> dict[str, Float[Tensor, " token"]]:
    ((stack, row),) = start.items()
    for call in reversed([one for one in calls if one.stack == stack and not one.crosses]):
        share = row[None] / (1 + mean_row_mass(call.scores, row.dtype))
        row = (share + mean_pattern_from_left(call.scores, share))[0]
    return {stack: row}
