"""What the states that answer are made of, by the operator that the whole stack of blocks is (arXiv:2601.17958).

Freeze attention patterns, deviations of norms and gates of activations: from the stream that enters the first block to
the one that leaves the last, the model is T x + b. Collapse T's block from token j to token i with both ends,

    M_ij = <u_i, T_ij x_j>,   u_i = y_i / |y_i|, y_i the state of token i behind the last block,

and read the rows of M from which the answer is read (as rollout reads its own), weighed by how much is read there. Like
rollout it does not know which answer was asked for, only from where; unlike rollout it knows values, MLPs and norms.
`path_contribution` is the same operator asked by the answer itself.
"""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

from attnscope.core.explanation import explanation


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
def operator(
    made_of: Callable[[], dict[str, Float[Tensor, "token width"]]],
) -> dict[str, Float[Tensor, " token"]]:
    return {stack: put.sum(-1) for stack, put in made_of().items()}
