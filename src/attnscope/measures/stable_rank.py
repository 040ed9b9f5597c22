"""How many directions the tokens use, weighted by energy, so that small singular values hardly count."""

from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.core.card import Alarm
from attnscope.core.limits import STABLE_RANK
from attnscope.core.measure import measure
from attnscope.matrix import rank


@measure(
    title="Stable rank",
    summary="The stream's energy divided by that of its strongest direction: 1 if there is only one direction.",
    unit="directions",
    citation="arXiv:1501.01571",
    scope="stream",
    group="deep",
    alarm=Alarm("<", STABLE_RANK, "one direction carries the stream"),
    log=True,
)
def stable_rank(
    stream: Float[Tensor, "batch token width"], token_mask: Bool[Tensor, "batch token"]
) -> Float[Tensor, " batch"]:
    # ||X||_F^2 / ||X||_2^2 lies in [1, min(n, d)]. For X X^T, see `gram_stable_rank`.
    return rank.stable_rank(stream, token_mask)
