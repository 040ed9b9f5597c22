"""Value zeroing (arXiv:2301.12971): how far each token's state moves in a block if another token's value is zero.

    C_ij = 1 - cos(state of i after the block, the same with value j zero),   rows divided by their sums,
    r <- r C_l, from the last block to the first

Unlike attention weights this includes values, the output projection, the skip, norms and the MLP of a block. A row in
which nothing moves stays the identity.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.explanation import explanation
from attnscope.matrix.relevance import TokenScores


@explanation(
    title="Value zeroing",
    summary="How far states move in each block when one token's value is zero, multiplied through all blocks.",
    citation="arXiv:2301.12971",
    formula="r <- r rownorm(C), C_ij = cosine distance of state i with and without value j",
    cost="one forward pass for every token",
    signed=False,
    group="slow",
    adds_up="1",
    sums_to="one",
    stacks="one",
    reads_answer=False,
)
def value_zeroing(zeroed: Callable[[str], Float[Tensor, "layer token token"]], start: TokenScores) -> TokenScores:
    ((stack, row),) = start.items()
    for moved in zeroed(stack).flip(0):
        sums = moved.sum(-1, keepdim=True)
        own = torch.eye(len(moved), dtype=moved.dtype, device=moved.device)
        row = row @ torch.where(sums > 0, moved / torch.where(sums > 0, sums, 1.0), own)
    return {stack: row}
