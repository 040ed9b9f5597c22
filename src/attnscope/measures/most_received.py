"""The key that receives the most attention of a head, and how much."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.core.card import Alarm
from attnscope.core.limits import SINK_MASS
from attnscope.core.measure import Located, measure


@measure(
    title="Most received",
    summary="The largest share of all attention that goes to one key, and which key that is.",
    unit="share",
    low=0.0,
    high=1.0,
    citation="arXiv:2410.10781",
    scope="attention",
    alarm=Alarm(">", SINK_MASS, "one key receives most of the attention"),
)
def most_received(
    received: Float[Tensor, "batch head key"],
    query_mask: Bool[Tensor, "batch query"],
    key_mask: Bool[Tensor, "batch key"],
) -> Located:
    # max_k (1/n) sum_i A_ik over n rows. The causal alpha_k = sum_i A_ik / (n - k) divides by the rows that can see key
    # k instead; its largest value is often the last key, seen by one row. Dividing by all rows agrees with alpha_0 for
    # the first key and with alpha_k for bidirectional attention, and short columns have no advantage.
    share = received.to(torch.promote_types(received.dtype, torch.float32))
    share = share / query_mask.sum(dim=-1).clamp_min(1)[:, None, None]
    largest, key = share.max(dim=-1)
    first = key_mask.to(torch.uint8).argmax(dim=-1)[:, None]  # number keys from the first one that is not padding
    return Located(largest, {"key": (key - first).clamp_min(0)})
