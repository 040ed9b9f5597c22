"""How much a block changes the norm of tokens."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.core.card import Alarm
from attnscope.core.limits import NORM_GROWTH
from attnscope.core.measure import measure
from attnscope.matrix.visibility import accumulation_dtype


@measure(
    title="Norm growth",
    summary="The factor by which a block changes the norm of a typical token.",
    unit="factor",
    citation="arXiv:2206.03126",
    scope="stream",
    alarm=Alarm(">", NORM_GROWTH, "a block makes the norm of tokens more than ten times larger"),
    log=True,
    of_block=True,
)
def norm_growth(
    stream: Float[Tensor, "batch token width"],
    stream_before: Float[Tensor, "batch token width"],
    token_mask: Bool[Tensor, "batch token"],
) -> Float[Tensor, " batch"]:
    # The geometric mean over tokens of |x_t after| / |x_t before|: factors of successive blocks multiply, and one
    # massive token counts as one token.
    dtype = accumulation_dtype(stream)
    tiny = torch.finfo(dtype).tiny
    after, before = (
        torch.linalg.vector_norm(tokens, dim=-1, dtype=dtype).clamp_min(tiny).log()
        for tokens in (stream, stream_before)
    )
    growth: Tensor = (after - before).masked_fill(~token_mask, 0.0)
    return (growth.sum(dim=-1) / token_mask.sum(dim=-1).clamp_min(1)).exp()
