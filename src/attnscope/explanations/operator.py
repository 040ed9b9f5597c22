"""What the states that answer are made of, with the whole stack of blocks as one operator (arXiv:2601.17958).

Freeze attention patterns, deviations of norms and gates of activations: from the stream that enters the first block to
the one that leaves the last, the model is T x + b. Collapse T's block from token j to token i with both ends,

    M_ij = <u_i, T_ij x_j>,   u_i = y_i / |y_i|, y_i the state of token i behind the last block,

and read the rows of M from which the answer is read (as rollout does), weighted by how much is read there. Like rollout
it depends on where the answer is read, not on which answer; unlike rollout it includes values, MLPs and norms.
`path_contribution` applies the same operator to the answer itself.
"""

from collections.abc import Callable

from attnscope.core.explanation import explanation
from attnscope.matrix.relevance import TokenScores, TokenVectors


@explanation(
    title="Operator",
    summary="What every token puts into the states that answer, the model taken as one operator.",
    citation="arXiv:2601.17958",
    formula="sum over answering i of w_i <u_i, T_ij x_j>",
    cost="one pass back through the frozen network; all maps of one layer at a time",
    signed=True,
    adds_up="the norm of the states that answer, less what constants (biases, shifts of norms) add",
    stacks="one",
)
def operator(made_of: Callable[[], TokenVectors]) -> TokenScores:
    return {stack: added.sum(-1) for stack, added in made_of().items()}
