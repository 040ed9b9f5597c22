"""How alike tokens are (mean cosine, diameter) and how alike heads are (cosine of their patterns on sampled rows).

Two heads with the same pattern are redundant. The cosine of their rows, <A_gi, A_hi> / (|A_gi| |A_hi|), is averaged
over 16 rows i of each sequence, evenly spaced over its real tokens: that costs as much as 16 rows of attention. Each
row counts the same. One cosine over all rows together would be dominated by the sharpest: under a causal mask row 0 is
(1) for every head, and heads with disjoint diffuse rows would still look alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnscope.matrix.scores import QueryMask, RowValues, Scores
from attnscope.matrix.tiles import VANISHING, LogPattern, complete_lse, row_lse
from attnscope.matrix.tiling import Tile, pieces, tile_elements
from attnscope.matrix.visibility import TokenMask, Tokens, sequences

_BLOCK = 256
OVERLAP_ROWS = 16


def token_cosine(stream: Tokens, token_mask: TokenMask | None = None) -> Float[Tensor, " batch"]:
    """Return the mean cosine similarity over distinct pairs of tokens, in O(n d).

    With u_i = x_i / |x_i| and s = sum_i u_i,   |s|^2 = sum_i |u_i|^2 + sum_{i != j} <u_i, u_j>, so the mean
    over the n (n - 1) ordered pairs is (|s|^2 - sum_i |u_i|^2) / (n (n - 1)). A zero token is orthogonal to
    everything. A single token has no pair; its value is 1, the limit of n equal tokens.
    """
    parts = []
    for some in sequences(stream, token_mask):
        length = torch.linalg.vector_norm(some.tokens, dim=-1)
        inverse = torch.where(length == 0, 0.0, 1.0 / length)  # padding rows are zero, so they drop out as well
        total = (inverse[:, None, :] @ some.tokens).squeeze(-2)
        own = (length * inverse).square().sum(dim=-1)
        pairs = some.count * (some.count - 1.0)
        parts.append(torch.where(pairs > 0, (total.square().sum(dim=-1) - own) / pairs.clamp_min(1.0), 1.0))
    return torch.cat(parts)


def diameter(stream: Tokens, token_mask: TokenMask | None = None) -> Float[Tensor, " batch"]:
    """Return max_ij |x_i - x_j|_2, a block of rows at a time. Differences are formed before they are squared."""
    parts = []
    for some in sequences(stream, token_mask):
        tokens = some.tokens
        if some.padding is not None:  # padding is moved to the mean token, which lies inside the cloud
            tokens = tokens.clone()
            rows = tokens.flatten(0, 1)
            rows[some.padding] = some.mean().squeeze(-2)[some.padding // tokens.shape[1]]
        blocks = [
            torch.cdist(tokens[:, i : i + _BLOCK], tokens, compute_mode="donot_use_mm_for_euclid_dist")
            for i in range(0, tokens.shape[1], _BLOCK)
        ]
        parts.append(torch.stack([block.amax(dim=(-2, -1)) for block in blocks]).amax(dim=0))
    return torch.cat(parts)


def sample_rows(
    query_mask: QueryMask, most: int = OVERLAP_ROWS
) -> tuple[Int[Tensor, "batch rows"], Bool[Tensor, "batch rows"]]:
    """Return at most `most` real rows per sequence, the last of each of as many equal stretches, and the mask of those
    in use.

    A short sequence gives every row; a longer one skips the first rows, which see very few keys. Rows are chosen by
    their rank among the real ones, so padding on either side chooses the same tokens.
    """
    count = query_mask.sum(-1, keepdim=True)
    step = (count + most - 1) // most
    rank = torch.arange(1, min(most, query_mask.shape[1]) + 1, device=query_mask.device) * step - 1
    order = torch.argsort(query_mask.logical_not().to(torch.int8), dim=-1, stable=True)
    real = (rank < count) & (rank >= 0)
    return order.gather(-1, rank.clamp(0, query_mask.shape[1] - 1)), real


def mean_cosines(
    gram: Float[Tensor, "batch rows heads heads"], real: Bool[Tensor, "batch rows"]
) -> Float[Tensor, "batch heads heads"]:
    """Return mean cosines from the heads' inner products in each row; a head that sees nothing adds 0."""
    norm = gram.diagonal(dim1=-2, dim2=-1).sqrt()
    scale = torch.where(norm <= VANISHING, 0.0, 1 / norm)
    cosine = gram * scale[..., :, None] * scale[..., None, :]
    counted = cosine.masked_fill(~real[..., None, None], 0.0).sum(1)
    return (counted / real.sum(-1).clamp_min(1)[:, None, None]).clamp_(0, 1)


def rows_of(scores: Scores, rows: Int[Tensor, "batch rows"]) -> Scores:
    """Return the scores of selected queries of each sequence, with position turned into a mask."""

    def pick(tensor: Tensor) -> Tensor:
        """Gather along the query axis of a `#batch #heads #query last` tensor, if it has one."""
        if tensor.shape[2] == 1 and scores.query.shape[2] != 1:
            return tensor
        sequence = torch.arange(rows.shape[0], device=rows.device)[:, None]
        return tensor.detach().expand(rows.shape[0], -1, -1, -1).transpose(1, 2)[sequence, rows].transpose(1, 2)

    allowed = None if scores.allowed is None else pick(scores.allowed)
    if not scores.band.open:
        keys = torch.arange(scores.key.shape[2], device=rows.device)
        seen = scores.band.permits(rows[:, None, :, None], keys)
        allowed = seen if allowed is None else seen & allowed
    bias = None if scores.bias is None else pick(scores.bias)
    lse = None if scores.lse is None else pick(scores.lse[..., None])[..., 0]
    pattern = None if scores.pattern is None else pick(scores.pattern)
    query = pick(scores.query)
    return replace(scores, query=query, causal=False, window=None, allowed=allowed, bias=bias, lse=lse, pattern=pattern)


def head_overlap(
    scores: Scores, *, query_mask: QueryMask, dtype: torch.dtype, lse: RowValues | None
) -> Float[Tensor, "batch heads heads"]:
    """Return the mean cosine of every pair of heads over the sampled rows; 0 for a head that sees nothing there."""
    rows, real = sample_rows(query_mask)
    sample = rows_of(replace(scores, lse=lse), rows)
    heads = sample.query.shape[1]
    gram = torch.zeros(*rows.shape, heads, heads, dtype=dtype, device=rows.device)
    for some, pattern in _tiles_of_all_heads(sample, real, dtype):
        by_row = pattern.transpose(1, 2)  # [some sequences, rows, heads, keys]
        gram[some] += by_row @ by_row.mT
    return mean_cosines(gram, real)


def _tiles_of_all_heads(
    sample: Scores, real: Bool[Tensor, "batch rows"], dtype: torch.dtype
) -> Iterator[tuple[slice, Tensor]]:
    """Yield tiles of the sampled rows that hold every head, so that heads can be multiplied with each other."""
    batch, heads, rows, _ = sample.query.shape
    keys = sample.key.shape[2]
    if sample.pattern is not None:
        yield slice(0, batch), sample.pattern.to(dtype) * real[:, None, :, None]
        return
    lse = row_lse(sample, dtype) if sample.lse is None else sample.lse.to(dtype)
    lse = complete_lse(lse, None, real)
    source = LogPattern(sample, dtype)
    room = tile_elements(dtype, sample.query.device)
    tile_keys = max(64, min(keys, room // max(1, heads * rows)))
    tile_batch = max(1, room // max(1, heads * rows * tile_keys)) if tile_keys >= keys else 1
    for some in pieces(0, batch, tile_batch):
        for key in pieces(0, keys, tile_keys):
            log = source.logits(Tile(some, slice(0, heads), slice(0, rows), key), lse[some])
            if log is not None:
                yield some, source.exponential(log)
