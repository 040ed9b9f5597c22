"""Whether another head of the block has the same pattern."""

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.card import Alarm
from attnscope.core.limits import DUPLICATE_OVERLAP
from attnscope.core.measure import Located, measure


@measure(
    title="Head overlap",
    summary="The mean cosine of a head's rows with those of the most similar head of its block, over 16 rows.",
    unit="cosine",
    low=0.0,
    high=1.0,
    citation="arXiv:1906.04341",
    scope="attention",
    alarm=Alarm(">", DUPLICATE_OVERLAP, "two heads of a block have the same pattern"),
)
def head_overlap(head_overlap: Float[Tensor, "batch head head"]) -> Located:
    # max over g != h of the mean over rows of <A_g, A_h> / (|A_g| |A_h|), which is never negative; 0 for the only head
    # of a block.
    overlap = head_overlap.to(torch.promote_types(head_overlap.dtype, torch.float32))
    alone = torch.eye(overlap.shape[-1], dtype=torch.bool, device=overlap.device)
    value, other = overlap.masked_fill(alone, 0.0).max(dim=-1)
    return Located(value.clamp(0.0, 1.0), {"other": other})
