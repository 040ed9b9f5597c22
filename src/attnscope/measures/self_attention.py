"""Whether tokens attend to themselves, so that the head does little more than a projection."""

from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.core.card import Alarm
from attnscope.core.limits import IDENTITY_MASS
from attnscope.core.measure import measure
from attnscope.matrix.visibility import row_mean


@measure(
    title="Self attention",
    summary="The mean attention of a token on itself.",
    unit="share",
    low=0.0,
    high=1.0,
    citation="arXiv:2402.02098",
    scope="attention",
    sites=("self",),
    alarm=Alarm(">", IDENTITY_MASS, "tokens mostly attend to themselves"),
)
def self_attention(
    self_mass: Float[Tensor, "batch head query"], query_mask: Bool[Tensor, "batch query"]
) -> Float[Tensor, "batch head"]:
    # (1/n) tr A. The first row of a causal pattern sees only itself and is counted: the identity has exactly 1.
    return row_mean(self_mass, query_mask)
