"""How many directions the tokens use, by energy: blind to small singular values."""

from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.core.card import Alarm
from attnscope.core.measure import measure
from attnscope.matrix import rank


@measure(
    title="Stable rank",
    summary="The stream's energy over that of its strongest direction: one when a single direction rules.",
    unit="directions",
    citation="arXiv:1501.01571",
    scope="stream",
    group="deep",
    alarm=Alarm("<", 1.05, "one direction carries the stream"),
    log=True,
)
def stable_rank(
    stream: Float[Tensor, "batch token width"], token_mask: Bool[Tensor, "batch token"]
) -> Float[Tensor, " batch"]:
    # ||X||_F^2 / ||X||_2^2 lies in [1, min(n, d)]. Of X X^T it is another number: see `gram_stable_rank`.
    return rank.stable_rank(stream, token_mask)
