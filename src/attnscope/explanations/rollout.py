"""Attention rollout (arXiv:2005.00928): attention multiplied through all blocks, with the skip as an identity.

    r <- r rownorm(mean over heads of A + I), from the last block to the first

It does not depend on the answer. Rows that sum to less than 1 (a learned sink takes the rest) are divided by their sum.
"""

from collections.abc import Sequence

from attnscope.core.explanation import explanation
from attnscope.matrix.logits import mean_pattern_from_left, mean_row_mass
from attnscope.matrix.relevance import AttentionCall, TokenScores


@explanation(
    title="Attention rollout",
    summary="Attention of all blocks multiplied, with the skip; it does not depend on the answer.",
    citation="arXiv:2005.00928",
    formula="r <- r rownorm(mean over heads of A + I)",
    cost="one forward pass",
    signed=False,
    stacks="one",
    adds_up="1, with the token itself",
    sums_to="one",
    reads_answer=False,
)
def rollout(calls: Sequence[AttentionCall], start: TokenScores) -> TokenScores:
    ((stack, row),) = start.items()
    for call in reversed([call for call in calls if call.stack == stack and not call.crosses]):
        share = row[None] / (1 + mean_row_mass(call.scores, row.dtype))
        row = (share + mean_pattern_from_left(call.scores, share))[0]
    return {stack: row}
