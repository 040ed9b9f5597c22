"""The contribution of each token to the answer through the frozen network. It is exact and adds up.

Freeze attention patterns, denominators of norms and gates of activations at this text: the network is then linear in
the stream that enters it (arXiv:2103.03404; arXiv:2601.17958 writes it as one operator), and

    answer = sum over tokens <x_i, (T^T c)_i> + the contribution of constants,

where c reads the answer from the output. T^T c is one pass back through the frozen network; T is never stored. The
stream that enters the first block includes positions, so a position counts as part of its token.
"""

from collections.abc import Callable

from attnscope.core.explanation import explanation
from attnscope.matrix.relevance import TokenScores, TokenVectors


@explanation(
    title="Path contribution",
    summary="The contribution of every token along all paths, with patterns and gates frozen.",
    citation="arXiv:2103.03404, arXiv:2601.17958",
    formula="<x, T^T c>, T the frozen network",
    cost="one pass back through the frozen network; all maps of one block at a time",
    signed=True,
    adds_up="the answer, less what constants (biases, shifts of norms) add",
    sums_to="through paths",
    stacks="one",
)
def path_contribution(contributions: Callable[[], TokenVectors]) -> TokenScores:
    return {stack: sent.sum(-1) for stack, sent in contributions().items()}
