"""Queries and keys normalised to one length, so that logits are bounded.

RMSNorm over each head with a trained gain; |s| <= scale dim max|g_q| max|g_k|. In models with rotary positions the norm
comes before the rotation; without gains the two orders are the same (arXiv:2010.04245).
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attnscope.core.variant import Size, variant
from attnscope.matrix.plain_attention import plain_attention, softmax_pattern
from attnscope.matrix.visibility import AttentionInputs, Mixed, Weights

Gain = Float[Tensor, " dim"]
EPSILON = 1e-6


def start(size: Size) -> dict[str, Tensor]:
    return {"query_gain": torch.ones(size.dim), "key_gain": torch.ones(size.dim)}


def pattern(inputs: AttentionInputs, *, query_gain: Gain, key_gain: Gain) -> Weights:
    query, key = (
        side / (side.square().mean(-1, keepdim=True) + EPSILON).sqrt() * gain.to(side.dtype)
        for side, gain in ((inputs.query, query_gain), (inputs.key, key_gain))
    )
    return softmax_pattern(replace(inputs, query=query, key=key))


@variant(
    kind="logits",
    title="Norm of queries and keys",
    summary="Queries and keys are scaled to one length before their product, so that logits are bounded.",
    citation="arXiv:2010.04245",
    formula="softmax(scale g_q q/rms(q) . g_k k/rms(k)) V",
    cost="n^2",
    parameters={"query_gain": "dim", "key_gain": "dim"},
    start=start,
    pattern=pattern,
    changes="the lengths of queries and keys, which sharpened some rows and not others, are lost",
)
def qk_norm(inputs: AttentionInputs, *, query_gain: Gain, key_gain: Gain) -> Mixed:
    query, key = (
        F.rms_norm(side, side.shape[-1:], gain.to(side.dtype), EPSILON)
        for side, gain in ((inputs.query, query_gain), (inputs.key, key_gain))
    )
    return plain_attention(replace(inputs, query=query, key=key))
