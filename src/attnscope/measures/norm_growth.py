"""How much a block makes tokens grow."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.core.card import Alarm
from attnscope.core.measure import measure
from attnscope.matrix.sequences import WHOLE_BYTES, sequences


@measure(
    title="Norm growth",
    summary="The factor by which a block changes the length of a typical token.",
    unit="factor",
    citation="arXiv:2206.03126",
    scope="stream",
    alarm=Alarm(">", 10.0, "one block makes tokens ten times longer"),
    log=True,
)
def norm_growth(
    stream: Float[Tensor, "batch token width"],
    stream_before: Float[Tensor, "batch token width"],
    token_mask: Bool[Tensor, "batch token"],
) -> Float[Tensor, "batch"]:
    # The geometric mean over tokens of |x_t after| / |x_t before|: factors of successive blocks multiply,
    # and one massive token moves it by its share of the tokens only. Padding rows have length zero in both,
    # hence log 1 = 0.
    growth = []
    after, before = (sequences(s, token_mask, WHOLE_BYTES) for s in (stream, stream_before))
    for new, old in zip(after, before, strict=True):
        new_length, old_length = (torch.linalg.vector_norm(some.tokens, dim=-1) for some in (new, old))
        tiny = torch.finfo(new_length.dtype).tiny
        logs = new_length.clamp_min(tiny).log() - old_length.clamp_min(tiny).log()
        growth.append((logs.sum(dim=-1) / new.count.clamp_min(1.0)).exp())
    return torch.cat(growth)
