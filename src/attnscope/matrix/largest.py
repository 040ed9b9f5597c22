"""The largest logit of every head, tile by tile: what `qk_clip` holds down, in memory that does not grow with n."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.matrix.scores import Scores
from attnscope.matrix.tiles import FORBIDDEN, LogPattern
from attnscope.matrix.tiling import Tile, cut, strips


def largest_product(
    scores: Scores, query_mask: Bool[Tensor, "batch query"], dtype: torch.dtype = torch.float32
) -> Float[Tensor, " heads"]:
    """max over real queries and the keys they see of scale * q . k; -inf where no head sees anything.

    The products alone: a bias stays what it is when queries and keys are scaled, and soft-capping comes after.
    """
    plain = replace(scores, softcap=None, sinks=None, bias=None, lse=None, allowed=_allowed(scores))
    source = LogPattern(plain, dtype)
    largest = torch.full((scores.query.shape[1],), -torch.inf, dtype=dtype, device=scores.query.device)
    for strip in strips(plain, dtype):
        real = cut(query_mask, strip.batch, strip.row)
        for key in strip.keys:
            tile = source.logits(Tile(strip.batch, strip.head, strip.row, key), None)
            if tile is not None:
                most = tile.amax(-1).masked_fill(~real[:, None], -torch.inf).amax((0, 2))
                largest[strip.head] = torch.maximum(largest[strip.head], most)
    return largest.masked_fill(largest <= FORBIDDEN / 10, -torch.inf)


def _allowed(scores: Scores) -> Tensor | None:
    if scores.bias is None or not bool(scores.bias.isneginf().any()):
        return scores.allowed
    finite = ~scores.bias.isneginf()
    return finite if scores.allowed is None else finite & scores.allowed
