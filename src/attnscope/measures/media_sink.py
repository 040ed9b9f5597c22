"""Sinks by kind of token: the picture or sound token, and the word, that receive the most attention."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.core.measure import Located, measure


@measure(
    title="Most received by kind",
    summary="The largest share of all attention that goes to one token of a picture or sound, and to one word.",
    unit="share",
    low=0.0,
    high=1.0,
    citation="arXiv:2503.03321",
    scope="attention",
    sites=("self",),
    parts=("media", "text"),
)
def media_sink(
    received: Float[Tensor, "batch head key"],
    query_mask: Bool[Tensor, "batch query"],
    key_mask: Bool[Tensor, "batch key"],
    media: Bool[Tensor, "batch key"],
) -> dict[str, Located]:
    # The maximum of `most_received`, taken over each kind of key separately: the larger one equals `most_received`.
    share = received.to(torch.promote_types(received.dtype, torch.float32))
    share = (share / query_mask.sum(dim=-1).clamp_min(1)[:, None, None]).clamp_max(1.0)
    first = key_mask.to(torch.uint8).argmax(dim=-1)[:, None]  # number keys from the first one that is not padding
    found: dict[str, Located] = {}
    for kind, keys in (("media", media & key_mask), ("text", key_mask & ~media)):
        largest, key = share.masked_fill(~keys[:, None], 0.0).max(dim=-1)
        found[kind] = Located(largest, {"key": (key - first).clamp_min(0)})
    return found
