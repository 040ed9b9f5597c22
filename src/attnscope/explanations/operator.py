"""The part of each token in the states that give the answer, with all blocks as one operator (arXiv:2601.17958).

Freeze attention patterns, deviations of norms and gates of activations: from the stream that enters the first block to
the stream that leaves the last, the model is T x + b. The submatrix T_ij from token j to token i is collapsed to a
number:

    M_ij = <u_i, T_ij x_j>,   u_i = y_i / |y_i|, y_i the state of token i after the last block.

The score of token j is the mean of M_ij over the tokens i that give the answer, weighted as in rollout. Like rollout it
does not depend on which answer is explained, only on where it is read. Unlike rollout it includes values, MLPs and
norms.
`path_contribution` applies the same operator to the answer itself.
"""

from collections.abc import Callable

from attnscope.core.explanation import explanation
from attnscope.matrix.relevance import TokenScores, TokenVectors


@explanation(
    title="Operator",
    summary="The part of every token in the states that give the answer, with the model as one operator.",
    citation="arXiv:2601.17958",
    formula="sum over answering i of w_i <u_i, T_ij x_j>",
    cost="one pass back through the frozen network; all maps of one block at a time",
    signed=True,
    adds_up="the norm of the states that answer, less what constants (biases, shifts of norms) add",
    stacks="one",
    reads_answer=False,
)
def operator(made_of: Callable[[], TokenVectors]) -> TokenScores:
    return {stack: added.sum(-1) for stack, added in made_of().items()}
