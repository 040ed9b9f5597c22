"""Whether a head is active: the norm of its output relative to the mean over the block's heads."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.core.measure import measure
from attnscope.matrix.visibility import accumulation_dtype


@measure(
    title="Output relative to the block",
    summary="The mean norm of a head's output before the output projection, relative to the block's mean.",
    unit="ratio",
    citation="arXiv:2504.03889",
    scope="attention",
    group="deep",
    log=True,
)
def inactive_heads(
    mixed: Float[Tensor, "batch query head value_dim"], query_mask: Bool[Tensor, "batch query"]
) -> Float[Tensor, "batch head"]:
    # mean_t ||z_h(t)|| / mean_g mean_t ||z_g(t)||: the mean over heads is 1, and a head near 0 can be removed. Unlike
    # the mass on the first token, it finds heads that attend to a small value anywhere, and heads whose values cancel.
    dtype = accumulation_dtype(mixed)
    norms = torch.linalg.vector_norm(mixed.detach(), dim=-1, dtype=dtype)
    total: Tensor = norms.masked_fill(~query_mask[:, :, None], 0.0).sum(dim=1)
    return total / total.mean(dim=-1, keepdim=True).clamp_min(torch.finfo(dtype).tiny)
