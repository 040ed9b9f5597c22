"""Attention of the last block, averaged over its heads.

The weights of one block do not explain the answer (arXiv:1902.10186); they are here for comparison.
"""

from collections.abc import Sequence

from torch import Tensor

from attnscope.core.explanation import explanation
from attnscope.matrix.logits import mean_pattern_from_left
from attnscope.matrix.relevance import AttentionCall, TokenScores


@explanation(
    title="Raw attention",
    summary="Attention of the last block, averaged over heads; cross-attention for the other stack.",
    citation="arXiv:1902.10186",
    formula="mean over heads of A, last block",
    cost="one forward pass",
    signed=False,
    adds_up="1 in each stack, less where a learned sink takes attention",
    reads_answer=False,
)
def raw_attention(calls: Sequence[AttentionCall], start: TokenScores) -> TokenScores:
    found: dict[str, Tensor] = {}
    for stack, row in start.items():
        last = {call.keys_from: call for call in calls if call.stack == stack}
        found |= {keys: mean_pattern_from_left(call.scores, row[None])[0] for keys, call in last.items()}
    return found
