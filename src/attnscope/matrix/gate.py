"""A sigmoid gate computed from the stream, y * gain sigmoid(x W + b), and trained shares that can begin at 0.

With gain 1 it is the published gate. With gain 2 and W = b = 0 it is exactly 1, with the largest possible gradient; the
output projection after it absorbs the 2, so both describe the same models. A large bias would also bring the gate near
1, but with almost no gradient.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.matrix.visibility import AttentionInputs, Visible, Weights, past, scores, softmax_rows


def share_of_each(share: Float[Tensor, " head"], dtype: torch.dtype) -> Float[Tensor, "head 1 1"]:
    """Return one trained share between 0 and 1 for each head, by which to multiply patterns or outputs.

    A plain clamp has no gradient outside its bounds: a share at 0 that one noisy step pushes below would stay there.
    Here the value is clamped but the gradient is passed through unchanged, so the share can come back.
    """
    free = share.to(dtype)[:, None, None]
    return free + (free.clamp(0, 1) - free).detach()


def gate(
    stream: Float[Tensor, "batch token width"],
    weight: Float[Tensor, "width out"],
    bias: Float[Tensor, " out"],
    gain: float,
) -> Float[Tensor, "batch token out"]:
    return gain * (stream @ weight.to(stream.dtype) + bias.to(stream.dtype)).sigmoid()


def gated_heads(
    heads: Float[Tensor, "batch token head dim"], gates: Float[Tensor, "batch token out"]
) -> Float[Tensor, "batch token head dim"]:
    """Multiply by one gate per head if there are as many gates as heads, else by one per coordinate."""
    return heads * gates.to(heads.dtype).reshape(*heads.shape[:-1], -1)


# One round of normalising over queries, then over keys (arXiv:2009.14308), computed with logarithms.
#
# With c_j = ln sum_i e^s_ij over the queries that see key j, xi_ij = e^(s_ij - c_j), and the second normalisation is a
# softmax of s_ij - c_j: nothing overflows, and a key that is unlikely for every query is not lost.


def doubly_normalised_pattern(inputs: AttentionInputs) -> Weights:
    logits = scores_of_real_queries(inputs)
    unseen = logits.isneginf().all(-2, keepdim=True)
    of_key = logits.masked_fill(unseen, 0.0).logsumexp(-2, keepdim=True)
    return softmax_rows(logits - of_key)


def scores_of_real_queries(inputs: AttentionInputs) -> Weights:
    """Return logits, -inf where a key is not seen or the query is padding.

    In self-attention queries and keys are the same tokens: a key that no query sees is padding as a query too.
    """
    visible = inputs.visible
    if inputs.query.shape[-2] != inputs.key.shape[-2]:
        raise RefusalError(
            "Doubly normalised attention adds up over queries and must know which are padding: it needs queries and "
            "keys of the same sequence."
        )
    if inputs.causal or _hides_the_future(visible):
        raise RefusalError(
            "Doubly normalised attention adds up over all queries, later ones too, so that it cannot be causal: choose "
            "another variant for this model."
        )
    logits = scores(inputs)
    if visible is None:
        return logits
    return logits.masked_fill(~visible.any(-2)[..., None], -torch.inf)


def _hides_the_future(visible: Visible) -> bool:
    if visible is None or 1 in visible.shape[-2:]:
        return False
    return not bool((visible & ~past(visible.shape[-2], visible.shape[-1], visible.device)).any())
