"""One layer's projections, all of them known, and whether its logits are what they say: s X W_QK X^T."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnscope.data.frame import WeightsFrame
from attnscope.hf.anatomy.anatomy import Anatomy, Stack
from attnscope.hf.anatomy.weights import weights
from attnscope.matrix.collapse_bounds import HeadNorms, head_norms
from attnscope.matrix.scores import Scores


@dataclass(frozen=True)
class Known:
    """One layer's projections, all of them known."""

    query: Float[Tensor, "head width dim"]
    key: Float[Tensor, "head width dim"]
    value: Float[Tensor, "head width value_dim"]
    output: Float[Tensor, "head value_dim width"]
    scale: float
    norms: HeadNorms


def known_weights(model: nn.Module, found: Anatomy, stack: Stack) -> dict[int, Known]:
    """By layer, where all of a layer's projections were recognised."""
    own = (f for f in weights(model, found) if (f.stack, f.site) == (stack.name, "self"))
    return {frame.layer: known for frame in own if (known := _known(frame)) is not None}


def _known(frame: WeightsFrame) -> Known | None:
    query, key, value, output = frame.query_weight, frame.key_weight, frame.value_weight, frame.output_weight
    if query is None or key is None or value is None or output is None:
        return None
    return Known(query, key, value, output, frame.scale, head_norms(query, key, value, output))


def reads_other_tokens(
    pattern: Float[Tensor, "1 head n n"],
    tokens: Float[Tensor, "1 n width"],
    mixed: Float[Tensor, "n head value_dim"],
    own: Known,
    epsilon: float,
) -> bool:
    """Whether P X W_V is not what attention mixed, up to a bias: then its projections read something else than X, a
    norm of it inside the module for example, and no bound from X speaks of it."""
    expected = torch.einsum("hqk,kw,hwd->qhd", pattern[0].double(), tokens[0], own.value.double())
    apart = expected - mixed
    allowed = 1e-6 * mixed.abs().max() + 4096 * epsilon * (expected.abs().max() + mixed.abs().max())
    return not bool((apart - apart.mean(0)).abs().max() <= allowed)


def turned(
    scores: Scores, real: Bool[Tensor, " token"], tokens: Float[Tensor, "n width"], own: Known, epsilon: float
) -> bool:
    """Whether the logits of one sequence are something else than s X W_QK X^T.

    What depends on the query or on the key alone may differ: (b) cancels it.
    """
    logits = _logits(scores)[0][:, real][..., real]
    query, key = (torch.einsum("nw,hwd->hnd", tokens, m.double()) for m in (own.query, own.key))
    product = own.scale * query @ key.mT
    apart = (_interaction(logits) - _interaction(product)).abs().max()
    allowed = 1e-6 * _interaction(product).abs().max() + 256 * epsilon * (1 + product.abs().max() + logits.abs().max())
    return not bool(apart <= allowed)


def _logits(scores: Scores) -> Float[Tensor, "1 head query key"]:
    """What softmax was given, up to a constant in every row: the logarithm of the pattern where the model made it."""
    if scores.pattern is not None:
        return scores.pattern.double().clamp_min(1e-300).log()
    key = scores.key.double().repeat_interleave(scores.sharing, dim=1)
    logits = scores.scale * scores.query.double() @ key.mT
    if scores.softcap is not None:
        logits = scores.softcap * torch.tanh(logits / scores.softcap)
    return logits if scores.bias is None else logits + scores.bias.double()


def _interaction(matrix: Float[Tensor, "head n n"]) -> Float[Tensor, "head n n"]:
    return matrix - matrix.mean(-1, keepdim=True) - matrix.mean(-2, keepdim=True) + matrix.mean((-2, -1), keepdim=True)
