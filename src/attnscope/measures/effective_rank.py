"""How many directions the tokens use, by the entropy of their singular values."""

from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.core.card import Alarm
from attnscope.core.limits import EFFECTIVE_RANK
from attnscope.core.measure import measure
from attnscope.matrix import rank


@measure(
    title="Effective rank",
    summary="The exponential of the entropy of the stream's singular values: how many directions carry it.",
    unit="directions",
    citation="arXiv:2210.02885",
    scope="stream",
    group="deep",
    alarm=Alarm("<", EFFECTIVE_RANK, "fewer than two directions carry the stream"),
    log=True,
)
def effective_rank(
    stream: Float[Tensor, "batch token width"], token_mask: Bool[Tensor, "batch token"]
) -> Float[Tensor, " batch"]:
    # exp(-sum_i p_i ln p_i), p_i = s_i / sum_j s_j: needs the whole spectrum.
    return rank.effective_rank(stream, token_mask)
