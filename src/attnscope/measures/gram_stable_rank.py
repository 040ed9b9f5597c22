"""How many directions the tokens use, by the energy of their Gram matrix X X^T, as arXiv:2410.07799 has it."""

from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.core.measure import measure
from attnscope.matrix import rank


@measure(
    title="Stable rank of the Gram matrix",
    summary="The stable rank of all products of two tokens, X X^T: nearer to one than that of the stream itself.",
    unit="directions",
    citation="arXiv:2410.07799",
    scope="stream",
    group="deep",
    log=True,
)
def gram_stable_rank(
    stream: Float[Tensor, "batch token width"], token_mask: Bool[Tensor, "batch token"]
) -> Float[Tensor, " batch"]:
    # sum_i s_i^4 / s_1^4 with s_i the singular values of X; `stable_rank` has squares, and the alarm.
    return rank.gram_stable_rank(stream, token_mask)
