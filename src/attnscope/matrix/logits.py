"""How far the logits of a row lie apart, tile by tile: the norm of a row's centred logits, and how many keys it sees.

Tiles are merged pairwise (count, mean, sum of squared deviations), which loses nothing where logits are large and
alike. A pattern that is given tells its logits up to a constant for each row, which centring takes away: ln A is taken
where A is not 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.matrix.scores import Scores
from attnscope.matrix.tiles import FORBIDDEN, LogPattern
from attnscope.matrix.tiling import Strip, Tile, cut, strips

# The largest logit of every head, tile by tile: what `qk_clip` holds down, in memory that does not grow with n.


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


def logit_spread(
    scores: Scores, dtype: torch.dtype = torch.float32
) -> tuple[Float[Tensor, "batch heads query"], Float[Tensor, "batch heads query"]]:
    """sigma_i = sqrt(sum_j (s_ij - mean)^2) over the keys that row i sees, and their number."""
    batch, heads, rows, _ = scores.query.shape
    keys, mean, squares = (torch.zeros(batch, heads, rows, dtype=dtype, device=scores.query.device) for _ in range(3))
    source = LogPattern(scores, dtype)
    for strip in strips(scores, dtype):
        before, middle, total = (cut(one, strip.batch, strip.head, strip.row) for one in (keys, mean, squares))
        for logits in _tiles(source, strip):
            seen = ~(logits <= FORBIDDEN / 10)  # NaN is seen
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
    """The least entropy of a softmax over n keys whose centred logits have norm sigma (after arXiv:2303.06296).

    Along a ray s = t v entropy falls: dH/dt = -t Var_p(v), so the least lies on the sphere |s| = sigma, sum s = 0.
    There stationary points solve p_i (s_i - E_p s) = a s_i + b, which has at most three roots s for one a and b. The
    one with one high logit and n - 1 equal ones, s = sigma (sqrt((n-1)/n), -1/sqrt(n (n-1)), ...), has the gap
    g = sigma sqrt(n/(n-1)); with u = exp(-g) the masses are 1/(1 + (n-1) u) and u/(1 + (n-1) u), and

        H = ln(1 + (n-1) u) + sigma sqrt(n (n-1)) u / (1 + (n-1) u).

    That it is the least of the stationary points is not proved here: random rows and descent from random starts find
    none below it (tests/matrix/test_logit_spread.py).
    """
    n = keys.clamp_min(2)
    others = n - 1
    small = torch.exp(-sigma * (n / others).sqrt())
    floor = torch.log1p(others * small) + sigma * (n * others).sqrt() * small / (1 + others * small)
    return floor.masked_fill(keys < 2, 0.0)  # NaN stays: of one key nothing can be chosen


def _tiles(source: LogPattern, strip: Strip) -> Iterator[Float[Tensor, "some_batch some_heads rows keys"]]:
    given = source.scores.pattern
    for key in strip.keys:
        if given is not None:
            pattern = cut(given.detach(), strip.batch, strip.head, strip.row, key).to(source.dtype)
            yield pattern.log().masked_fill(pattern == 0, FORBIDDEN)
            continue
        logits = source.logits(Tile(strip.batch, strip.head, strip.row, key), None)
        if logits is not None:
            yield logits
