"""A learned sink: one trained logit per head that takes weight from the keys and has no value.

As published (arXiv:2508.10925) the sink is there from the beginning of training. For a trained model, `share` mixes
attention with and without it: at 0 nothing changes, and its gradient has the size of the output, while a sink that
starts at a very low logit would have a tiny gradient. `share` 1 is the published attention.
"""

import torch
from torch import Tensor

from attnscope.core.variant import Size, variant
from attnscope.matrix.gate import share_of_each
from attnscope.matrix.plain_attention import attention_with_share_of_sink, sink_pattern, softmax_pattern
from attnscope.matrix.visibility import AttentionInputs, Mixed, PerHead, Weights


def start(size: Size) -> dict[str, Tensor]:
    return {"sink": torch.zeros(size.heads), "share": torch.zeros(size.heads)}


def pattern(inputs: AttentionInputs, *, sink: PerHead, share: PerHead) -> Weights:
    without, within = softmax_pattern(inputs), sink_pattern(inputs, sink)
    return without + share_of_each(share, without.dtype) * (within - without)


@variant(
    kind="pattern",
    title="Learned sink of each head",
    summary="One trained logit per head takes weight from all keys and adds no value.",
    citation="arXiv:2508.10925",
    formula="A_ij = (1 - g) e^s_ij / sum_j e^s_ij + g e^s_ij / (e^c + sum_j e^s_ij),  g in [0, 1]",
    cost="n^2",
    rows_sum_to_one=False,
    parameters={"sink": "heads", "share": "heads"},
    start=start,
    pattern=pattern,
    keeps="share g = 0: the sink takes nothing; g = 1 is the published attention",
)
def learned_sink(inputs: AttentionInputs, *, sink: PerHead, share: PerHead) -> Mixed:
    return attention_with_share_of_sink(inputs, sink, share_of_each(share, inputs.query.dtype))
