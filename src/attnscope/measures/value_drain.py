"""Whether a head attends to a token with a small value: the value of its sink relative to the others."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.core.measure import Located, measure
from attnscope.matrix.visibility import accumulation_dtype


@measure(
    title="Value drain",
    summary="The norm of the value of the key that receives the most attention, relative to the head's mean.",
    unit="ratio",
    citation="arXiv:2410.13835",
    scope="attention",
    group="deep",
    log=True,
)
def value_drain(
    received: Float[Tensor, "batch head key"],
    value: Float[Tensor, "batch kv_head key value_dim"],
    key_mask: Bool[Tensor, "batch key"],
) -> Located:
    # ||v_k|| / mean_j ||v_j|| at k = argmax_k sum_i A_ik. Attention to a small value writes almost nothing, so the head
    # is inactive. Heads that share values share their norms.
    dtype = torch.promote_types(accumulation_dtype(value), received.dtype)
    norms = torch.linalg.vector_norm(value.detach(), dim=-1, dtype=dtype)
    norms = norms.masked_fill(~key_mask[:, None], 0.0)
    mean = norms.sum(dim=-1, keepdim=True) / key_mask.sum(dim=-1).clamp_min(1)[:, None, None]
    beside = (norms / mean.clamp_min(torch.finfo(dtype).tiny)).repeat_interleave(received.shape[1] // norms.shape[1], 1)
    sink = received.argmax(dim=-1, keepdim=True)
    first = key_mask.to(torch.uint8).argmax(dim=-1)[:, None]  # number keys from the first one that is not padding
    return Located(beside.gather(-1, sink).squeeze(-1), {"key": (sink.squeeze(-1) - first).clamp_min(0)})
