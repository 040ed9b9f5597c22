"""The largest logit of a head, which grows before attention becomes one-hot and training diverges."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.core.card import Alarm
from attnscope.core.limits import MAX_LOGIT
from attnscope.core.measure import Located, measure


@measure(
    title="Largest logit",
    summary="The largest logit that softmax receives in a head, over all queries and the keys they see, and its query.",
    unit="logit",
    low=float("-inf"),
    citation="arXiv:2507.20534",
    scope="attention",
    group="deep",
    alarm=Alarm(">", MAX_LOGIT, "logits so large that QK-Clip would scale queries and keys down"),
)
def max_logit(
    row_top_logit: Float[Tensor, "batch head query"],
    row_mass: Float[Tensor, "batch head query"],
    query_mask: Bool[Tensor, "batch query"],
) -> Located:
    # S_max = max_ij s_ij over real rows and the keys they see: after soft-capping, with a bias, without a learned sink.
    # No full map is needed: the blocked pass computes ln A_ij = s_ij - lse_i of a tile, so max_j s_ij is the maximum of
    # the row plus lse_i. A row that sees no key has no logit.
    top = row_top_logit.to(torch.promote_types(row_top_logit.dtype, torch.float32))
    counted = query_mask[:, None, :] & (row_mass != 0)
    value, query = top.masked_fill(~counted, -torch.inf).max(dim=-1)
    first = query_mask.to(torch.uint8).argmax(dim=-1)[:, None]  # number tokens from the first one that is not padding
    return Located(value.masked_fill(value.isneginf(), 0.0), {"token": (query - first).clamp_min(0)})
