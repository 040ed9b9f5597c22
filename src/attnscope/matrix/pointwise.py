"""Mass on chosen keys, from dot products: A_ij = exp(s_ij - lse_i) needs one entry of a row, not the row."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from attnscope.matrix.scores import Scores

POINTWISE_STATISTICS = ("first_key_mass", "self_mass", "previous_mass")


def pointwise_mass(
    scores: Scores,
    name: str,
    *,
    key_mask: Bool[Tensor, "batch key"],
    dtype: torch.dtype,
    lse: Float[Tensor, "batch heads query"],
) -> Float[Tensor, "batch heads query"]:
    """`first_key_mass`, `self_mass` or `previous_mass` of a plain scaled dot product; O(n d) work."""
    row = torch.arange(scores.query.shape[2], device=key_mask.device)
    if name == "first_key_mass":
        target = key_mask.to(torch.int8).argmax(-1)[:, None].expand(-1, len(row))
    else:
        target = (row - (0 if name == "self_mass" else 1)).expand(len(key_mask), -1)
    return mass_at(scores, target, dtype, lse)


def mass_at(
    scores: Scores,
    target: Int[Tensor, "batch query"],
    dtype: torch.dtype,
    lse: Float[Tensor, "batch heads query"] | None,
) -> Float[Tensor, "batch heads query"]:
    """A at key target[b, i] of row i, whatever is done to the logits; 0 where there is no such key or it may not be
    seen. `lse`, sinks included, is not needed where the pattern is given."""
    batch, heads, rows, dim = scores.query.shape
    keys, groups = scores.key.shape[2], scores.key.shape[1]
    exists = (target >= 0) & (target < keys)
    safe = target.clamp(0, keys - 1)
    if scores.pattern is not None:
        index = safe[:, None, :, None].expand(-1, heads, -1, 1)
        return torch.where(exists[:, None], scores.pattern.detach().gather(-1, index)[..., 0].to(dtype), 0.0)
    assert lse is not None
    chosen = scores.key.detach().gather(2, safe[:, None, :, None].expand(-1, groups, -1, dim)).to(dtype)
    query = scores.query.detach().to(dtype).reshape(batch, groups, scores.sharing, rows, dim)
    s = scores.scale * torch.einsum("bgsid,bgid->bgsi", query, chosen).reshape(batch, heads, rows)
    if scores.softcap is not None:
        s = scores.softcap * torch.tanh(s / scores.softcap)
    if scores.bias is not None:
        s = s + _at(scores.bias.detach(), safe).to(dtype)
    seen = (exists & scores.band.permits(torch.arange(rows, device=target.device), target))[:, None]
    if scores.allowed is not None:
        seen = seen & _at(scores.allowed, safe)
    return torch.where(seen, torch.exp(s - lse), 0.0)


def _at(
    rule: Shaped[Tensor, "#batch #heads #query key"], place: Int[Tensor, "batch query"]
) -> Shaped[Tensor, "batch some_heads query"]:
    """What a mask or bias says of one key of every row."""
    batch, rows = place.shape
    return rule.expand(batch, -1, rows, -1).gather(-1, place[:, None, :, None].expand(-1, rule.shape[1], -1, 1))[..., 0]
