"""How many directions the tokens use, by the stable rank of their Gram matrix X X^T (arXiv:2410.07799)."""

from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.core.measure import measure
from attnscope.matrix import rank


@measure(
    title="Stable rank of the Gram matrix",
    summary="The stable rank of the Gram matrix of the tokens, X X^T, which is closer to 1 than that of the stream.",
    unit="directions",
    citation="arXiv:2410.07799",
    scope="stream",
    group="deep",
    log=True,
)
def gram_stable_rank(
    stream: Float[Tensor, "batch token width"], token_mask: Bool[Tensor, "batch token"]
) -> Float[Tensor, " batch"]:
    # sum_i s_i^4 / s_1^4, with s_i the singular values of X. `stable_rank` uses squares, and the alarm is on that one.
    return rank.gram_stable_rank(stream, token_mask)
