"""What each token sends to the answer through the frozen network: exact, and it adds up.

Freeze attention patterns, denominators of norms and gates of activations at this text: the network is then linear in
the stream that enters it (arXiv:2103.03404; arXiv:2601.17958 writes it as one operator), and

    answer = sum over tokens <x_i, (T^T c)_i> + what constants add,

where c reads the answer from the output. T^T c is one pass back through the frozen network; T is never written. The
stream that enters the first block includes positions: what a token's position sends counts as the token's.
"""

from collections.abc import Callable

from attnscope.core.explanation import explanation
from attnscope.matrix.relevance import TokenScores, TokenVectors


@explanation(
    title="Path contribution",
    summary="What every token sends along all paths through the model, patterns and gates frozen.",
    citation="arXiv:2103.03404, arXiv:2601.17958",
    formula="<x, T^T c>, T the frozen network",
    cost="one pass back through the frozen network; all maps of one layer at a time",
    signed=True,
    adds_up="the answer, less what constants (biases, shifts of norms) add",
    stacks="one",
)
def path_contribution(contributions: Callable[[], TokenVectors]) -> TokenScores:
    return {stack: sent.sum(-1) for stack, sent in contributions().items()}
