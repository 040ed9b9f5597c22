"""Whether a head attends to the token before: the first half of an induction circuit."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.core.measure import measure


@measure(
    title="Previous token",
    summary="The mean attention on the token just before the query.",
    unit="share",
    low=0.0,
    high=1.0,
    citation="arXiv:2209.11895",
    scope="attention",
    sites=("self",),
)
def previous_token(
    previous_mass: Float[Tensor, "batch head query"], query_mask: Bool[Tensor, "batch query"]
) -> Float[Tensor, "batch head"]:
    # The first row has no token before it: the mean runs over the n - 1 others, so a pure previous-token head has 1.
    mass = previous_mass.to(torch.promote_types(previous_mass.dtype, torch.float32))
    total = mass.masked_fill(~query_mask[:, None, :], 0.0).sum(dim=-1)
    return total / (query_mask.sum(dim=-1) - 1).clamp_min(1)[:, None]
