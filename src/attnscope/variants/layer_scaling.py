"""Divide the output of a norm by the root of the block's number, so that deep blocks do not become the identity.

In pre-norm models the stream grows with depth, and late blocks add ever less in proportion. Dividing by sqrt(layer),
where `layer` is the block's number counted from 1, bounds this growth (arXiv:2502.05795).
"""

import math

from jaxtyping import Float
from torch import Tensor

from attnscope.core.variant import variant


@variant(
    kind="block",
    title="Norms divided by the root of depth",
    summary="The output of the norm before attention or MLP is divided by the root of the block's number.",
    citation="arXiv:2502.05795",
    formula="norm(x) / sqrt(l),  l = 1, 2, ...",
    cost="none",
    settings={"layer": "the block's number plus one: 1 for block 0"},
    changes="its factor is fixed and below 1 in every block but the first",
)
def layer_scaling(normed: Float[Tensor, "batch token width"], *, layer: int = 1) -> Float[Tensor, "batch token width"]:
    return normed / math.sqrt(layer)
