"""ContraNorm, y - s softmax(u u^T) y with u the tokens at unit length, moves every token away from similar tokens.

It acts on the output of attention, on the whole width, over the tokens that attention may see (arXiv:2303.06562).
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attnscope.core.variant import Size, variant
from attnscope.matrix.plain_attention import plain_attention
from attnscope.matrix.visibility import AttentionInputs, Visible


def start(size: Size) -> dict[str, Tensor]:
    return {"strength": torch.zeros(1)}


@variant(
    kind="block",
    title="ContraNorm: tokens pushed apart",
    summary="Every token is pushed away from the tokens that are similar to it.",
    citation="arXiv:2303.06562",
    formula="y - s softmax(u u^T) y,  u = y / |y|",
    cost="n^2",
    cross=False,
    parameters={"strength": "one number"},
    start=start,
    keeps="strength s = 0",
)
def contra_norm(
    write: Float[Tensor, "batch token width"],
    *,
    strength: Float[Tensor, " 1"],
    visible: Visible = None,
    causal: bool = False,
) -> Float[Tensor, "batch token width"]:
    unit, tokens = F.normalize(write, dim=-1)[:, None], write[:, None]
    alike = plain_attention(AttentionInputs(unit, unit, tokens, visible, causal, scale=1.0))[:, 0]
    return write - strength.to(write.dtype) * alike
