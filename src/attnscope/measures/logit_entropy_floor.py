"""The lowest entropy that the spread of the logits allows, and how far above it a head is."""

from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.core.measure import measure
from attnscope.matrix.logits import entropy_floor, logit_spread
from attnscope.matrix.scores import Scores
from attnscope.matrix.visibility import accumulation_dtype, row_mean


@measure(
    title="Entropy floor",
    summary="The lowest entropy that is possible with this spread of logits, and how far above it the head is.",
    unit="nats",
    low=0.0,
    high=12.0,
    citation="arXiv:2303.06296",
    scope="attention",
    group="deep",
    parts=("floor", "above"),
)
def logit_entropy_floor(
    scores: Scores,
    row_entropy: Float[Tensor, "batch head query"],
    row_mass: Float[Tensor, "batch head query"],
    query_mask: Bool[Tensor, "batch query"],
) -> dict[str, Float[Tensor, "batch head"]]:
    # H_i >= floor(sigma_i, n_i), attained by one high logit (derived at `entropy_floor`). Rows are distributions over
    # the keys they see, as in `entropy`, so a learned sink changes neither. If the floor is high, no logit can make the
    # head sharp; if it is low and the head far above it, logits are spread without preferring one key.
    floor = entropy_floor(*logit_spread(scores, accumulation_dtype(scores.query)))
    mass = row_mass.to(floor.dtype)
    empty = mass == 0
    whole = mass.masked_fill(empty, 1.0)
    found = (row_entropy.to(floor.dtype) / whole + whole.log()).masked_fill(empty, 0.0)
    above = (found - floor).masked_fill(empty, 0.0).clamp_min(0.0)  # negative only by rounding
    return {"floor": row_mean(floor, query_mask), "above": row_mean(above, query_mask)}
