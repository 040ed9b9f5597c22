"""Sizes of logits, computed tile by tile: the largest logit of every head, and the norm of a row's centred logits.

Tiles are merged pairwise (count, mean, sum of squared deviations), which is accurate even if logits are large and
nearly equal. A given pattern determines its logits up to a constant for each row, which centring removes; so ln A is
used where A is not 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.matrix.scores import QueryMask, RowValues, Scores
from attnscope.matrix.tiles import FORBIDDEN, LogPattern, TileValues, pattern_strips, precise_lse, row_lse
from attnscope.matrix.tiling import Strip, Tile, cut, strips

# A x and A^T y without the attention pattern A, as power iteration needs them.
#
# Both are sums over the tiles of `tiles.py`, so memory is O(n d). Call `with_lse` once before many products.


def with_lse(scores: Scores, dtype: torch.dtype = torch.float32) -> Scores:
    """Add every row's log-sum-exp to the scores, computed in `dtype` unless it is already as precise."""
    if scores.pattern is not None or precise_lse(scores, dtype) is not None:
        return scores
    return replace(scores, lse=row_lse(scores, dtype))


def apply(scores: Scores, x: Float[Tensor, "batch heads key columns"]) -> Float[Tensor, "batch heads query columns"]:
    """Return A x, in the precision of x (at least float32). Rows that see nothing give 0."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    x = x.to(dtype)
    out = x.new_zeros(*x.shape[:2], scores.query.shape[2], x.shape[-1])
    for strip, tiles in pattern_strips(scores, dtype, lse=precise_lse(scores, dtype)):
        rows = out[strip.batch, strip.head, strip.row]
        for key, pattern, _ in tiles:
            rows.add_(pattern @ x[strip.batch, strip.head, key])
    return out


def apply_transposed(
    scores: Scores, y: Float[Tensor, "batch heads query columns"]
) -> Float[Tensor, "batch heads key columns"]:
    """Return A^T y, in the precision of y (at least float32)."""
    dtype = torch.promote_types(y.dtype, torch.float32)
    y = y.to(dtype)
    out = y.new_zeros(*y.shape[:2], scores.key.shape[2], y.shape[-1])
    for strip, tiles in pattern_strips(scores, dtype, lse=precise_lse(scores, dtype)):
        rows = y[strip.batch, strip.head, strip.row]
        for key, pattern, _ in tiles:
            out[strip.batch, strip.head, key].add_(pattern.mT @ rows)
    return out


def mean_pattern_from_left(scores: Scores, r: Float[Tensor, "batch query"]) -> Float[Tensor, "batch key"]:
    """Return the row vector r times the mean of A over heads."""
    columns = r[:, None, :, None].expand(-1, scores.query.shape[1], -1, 1)
    return apply_transposed(scores, columns).mean(1).squeeze(-1)


def mean_row_mass(scores: Scores, dtype: torch.dtype) -> Float[Tensor, "batch query"]:
    """Return the sums of rows, averaged over heads: 1, unless a learned sink takes a part or a row sees nothing."""
    batch, heads = scores.query.shape[:2]
    ones = torch.ones(batch, heads, scores.key.shape[2], 1, dtype=dtype, device=scores.query.device)
    return apply(scores, ones).mean(1).squeeze(-1)


def largest_product(
    scores: Scores, query_mask: QueryMask, dtype: torch.dtype = torch.float32
) -> Float[Tensor, " heads"]:
    """Return the largest scale * q . k over real queries and the keys they see, as `qk_clip` needs it; -inf if none.

    Bias and soft-capping are left out: scaling queries and keys does not change a bias, and soft-capping comes later.
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


def logit_spread(scores: Scores, dtype: torch.dtype = torch.float32) -> tuple[RowValues, RowValues]:
    """Return sigma_i = sqrt(sum_j (s_ij - mean)^2) over the keys that row i sees, and their number."""
    batch, heads, rows, _ = scores.query.shape
    keys, mean, squares = (torch.zeros(batch, heads, rows, dtype=dtype, device=scores.query.device) for _ in range(3))
    source = LogPattern(scores, dtype)
    for strip in strips(scores, dtype):
        before, middle, total = (cut(table, strip.batch, strip.head, strip.row) for table in (keys, mean, squares))
        for logits in _tiles(source, strip):
            seen = ~(logits <= FORBIDDEN / 10)  # NaN counts as seen
            count = seen.sum(-1).to(dtype)
            average = torch.where(seen, logits, 0.0).sum(-1) / count.clamp_min(1)
            apart = torch.where(seen, logits - average[..., None], 0.0)
            together = (before + count).clamp_min(1)
            step = average - middle
            total += apart.square().sum(-1) + step.square() * before * count / together
            middle += step * count / together
            before += count
    return squares.sqrt(), keys


def entropy_floor(sigma: Float[Tensor, "*rows"], keys: Float[Tensor, "*rows"]) -> Float[Tensor, "*rows"]:
    """Return the least entropy of a softmax over n keys whose centred logits have norm sigma (after arXiv:2303.06296).

    Along a ray s = t v entropy falls: dH/dt = -t Var_p(v), so the minimum lies on the sphere |s| = sigma, sum s = 0.
    Stationary points there solve p_i (s_i - E_p s) = a s_i + b, which has at most three roots s for one a and b. The
    one with one high logit and n - 1 equal ones, s = sigma (sqrt((n-1)/n), -1/sqrt(n (n-1)), ...), has the gap
    g = sigma sqrt(n/(n-1)); with u = exp(-g) the masses are 1/(1 + (n-1) u) and u/(1 + (n-1) u), and

        H = ln(1 + (n-1) u) + sigma sqrt(n (n-1)) u / (1 + (n-1) u).

    It is not proved here that this is the least stationary point: random rows and descent from random starts find
    nothing below it (tests/matrix/test_logits.py).
    """
    n = keys.clamp_min(2)
    others = n - 1
    small = torch.exp(-sigma * (n / others).sqrt())
    floor = torch.log1p(others * small) + sigma * (n * others).sqrt() * small / (1 + others * small)
    return floor.masked_fill(keys < 2, 0.0)  # 0 for a single key; NaN stays


def _tiles(source: LogPattern, strip: Strip) -> Iterator[TileValues]:
    given = source.scores.pattern
    for key in strip.keys:
        if given is not None:
            pattern = cut(given.detach(), strip.batch, strip.head, strip.row, key).to(source.dtype)
            yield pattern.log().masked_fill(pattern == 0, FORBIDDEN)
            continue
        logits = source.logits(Tile(strip.batch, strip.head, strip.row, key), None)
        if logits is not None:
            yield logits
