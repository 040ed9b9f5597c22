"""What an attention function is called with, read as variants want it: who sees whom, by which scale.

Models hand out masks in the form of their attention implementation: under fused attention booleans, or nothing where
`is_causal` says it all; written out, numbers that are added to logits. Whatever else stands at a call and changes the
logits (soft-capping, learned sinks, position biases) would be lost in another attention, and is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.core.errors import RefusalError

FORBIDDING = -1e4  # additive masks use -1e4, finfo.min or -inf; exp of any of them is 0
_CHANGES_LOGITS = {
    "softcap": "caps its logits",
    "s_aux": "has learned sinks of its own",
    "position_bias": "adds a position bias to its logits",
    "head_mask": "masks whole heads",
    "cu_seq_lens_q": "packs several texts into one row",
    "cu_seq_lens_k": "packs several texts into one row",
}


@dataclass(frozen=True)
class Call:
    """Queries, keys and values `[batch, head, token, dim]`, and the rule between them."""

    query: Tensor
    key: Tensor
    value: Tensor
    visible: Tensor | None
    causal: bool
    scale: float
    dropout: float

    @property
    def rule(self) -> dict[str, Any]:
        return {"visible": self.visible, "causal": self.causal, "scale": self.scale}


def read_call(
    module: nn.Module, tensors: tuple[Tensor, Tensor, Tensor], mask: Any, asked: Mapping[str, Any], *, fused: bool
) -> Call:
    """`fused`: whether the model's implementation takes a missing mask and `is_causal` for causality, as torch does."""
    query, key, value = tensors
    for name, words in _CHANGES_LOGITS.items():
        if asked.get(name) is not None:
            raise RefusalError(
                f"{type(module).__name__} {words} ('{name}'), which another attention would lose: choose a variant of "
                "kind output, block or weights, or another model."
            )
    causal = False
    if mask is None and fused and query.shape[2] > 1:
        flag = asked.get("is_causal")
        causal = bool(getattr(module, "is_causal", True) if flag is None else flag)
    if causal and key.shape[2] > query.shape[2]:  # a cache with room ahead, filled from the front
        key, value = key[:, :, : query.shape[2]], value[:, :, : query.shape[2]]
    scale = asked.get("scaling")
    return Call(
        query=query,
        key=key,
        value=value,
        visible=_visible(module, mask, key.shape[2]),
        causal=causal,
        scale=query.shape[-1] ** -0.5 if scale is None else float(scale),
        dropout=float(asked.get("dropout") or 0.0),
    )


def _visible(module: nn.Module, mask: Any, keys: int) -> Tensor | None:
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.ndim != 4:
        raise RefusalError(
            f"{type(module).__name__} is given its mask in a form that cannot be read ({type(mask).__name__}): load "
            "the model with attn_implementation='sdpa' or 'eager'."
        )
    cut: Tensor = mask[..., :keys]
    if cut.dtype == torch.bool:
        return cut
    forbidden: Tensor = cut <= FORBIDDING
    if not bool(((cut == 0) | forbidden).all()):
        raise RefusalError(
            f"{type(module).__name__} adds a bias to its logits, which another attention would lose: choose a variant "
            "of kind output, block or weights, or another model."
        )
    return ~forbidden
