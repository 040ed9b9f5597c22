"""Round float64 factors to a head in the precision it will run in, with ratios as exact as that precision allows.

Keys are rounded first and queries get exact ratios on the rounded keys, so the rounding of keys costs margin but does
not change ratios. The rounding of queries remains. In half precision rounding each coordinate to nearest is far from
best: a query has two neighbours per coordinate, 2^width corners of a small box, and only |S| - 1 ratios that must be
right. A search among the corners (`_towards_ratios`) makes the errors of the coordinates cancel on the support.

In single and double precision only the rounding of sums matters (`heads.certificate`). If keys are short numbers (of
few bits), such as points of a grid, queries can be made short too, so that no sum rounds (`_short`); this is done where
it is better.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.heads.accuracy import Accuracy, Dtype, Factors, with_exact_ratios
from attnscope.heads.certificate import HERE, MILLIONTH, UNITS, certify, gamma, lowest_bit, step_of
from attnscope.heads.facts import Certificate
from attnscope.heads.head import Head, KeyTensor, QueryTensor, Rows
from attnscope.heads.pattern import Pattern

HALF: tuple[Dtype, ...] = ("bfloat16", "float16")
_ELEMENTS_AT_ONCE = 2**22  # size of the table of pairs of coordinates, width x width for each row
_MOST_FLIPS = 64
_FINE = 2.0**-14  # a grid that changes logits by more than this share of sum |q_c k_c| is not tried
_STARTS = 4  # each start ends in a corner; the best corner is used


def surely_certified(queries: QueryTensor, keys: KeyTensor, rows: Rows, accuracy: Accuracy) -> Bool[Tensor, " row"]:
    """Return which rows the certificate is sure to pass; False proves nothing. Queries and keys are as the head stores
    them.

    This is faster than the certificate and never more lenient. With m_c = max_j |k_jc|, a = sum_c |q_c| m_c, and t = s
    - ln A on the support, the sum of bound (1) or (2) of `heads.certificate` and of the error from rounding the scale
    (|s_j - s_peak| <= 2 scale a) is at most

        r = scale a (gamma_(d+1)(u) + gamma_(d+1)(2^-53) + 2 u) (1 + 1e-6)     for all logits of the row, so

        ratio error  <=  exp(max t - min t + 2 r) - 1
        leak         <=  sigmoid(ln(n - |S|) + max over j not in S of s_j - lse over S of s + 2 r):

    the sum over zeros is at most their number times the largest. So no array of bounds and no exponentials of n numbers
    are needed.
    """
    n, width = keys.shape
    unit, scale = UNITS[accuracy.dtype], width**-0.5
    exact = queries.double()
    largest = keys.abs().amax(0).double()
    slack = (exact.abs() @ largest) * scale * MILLIONTH * (gamma(width + 1, unit) + gamma(width + 1, HERE) + 2 * unit)
    logits = (exact * scale) @ keys.double().T
    on = logits.gather(1, rows.support)
    rows.hide(logits, -torch.inf)
    residual = on - rows.logs
    residual = torch.where(rows.real, residual, residual[:, :1])  # unused slots repeat the first key
    ratio = torch.expm1(residual.amax(1) - residual.amin(1) + 2 * slack)
    alone = rows.real.sum(1) == 1
    mass = torch.where(rows.real, on, -torch.inf).logsumexp(1)
    zeros = (n - rows.real.sum(1)).double().log()
    leak = torch.sigmoid(zeros + logits.amax(1) - mass + 2 * slack)
    return ((ratio <= accuracy.ratio_error) | alone & ratio.isfinite()) & (leak <= accuracy.leak)


def rounded(factors: Factors, pattern: Pattern, dtype: Dtype, method: str) -> Head:
    """Round the keys, give the queries exact ratios on the rounded keys (unless `as_found`), then round the queries.

    Queries are multiplied by sqrt(width), because attention divides by it.
    """
    precision: torch.dtype = getattr(torch, dtype)
    raise_queries = factors.width**0.5
    shift = _shift(factors, raise_queries, precision)
    keys = torch.from_numpy(np.ascontiguousarray(factors.keys * shift)).to(precision)
    lowered = factors.queries / shift
    exact = lowered if factors.as_found else with_exact_ratios(lowered, keys.double().numpy(), pattern)
    queries = torch.from_numpy(exact * raise_queries)
    queries = _towards_ratios(queries, keys, pattern) if dtype in HALF else _short(queries, keys, pattern, dtype)
    return Head(queries, keys, pattern.causal, method, factors.notes)


def _shift(factors: Factors, raise_queries: float, precision: torch.dtype) -> float:
    """Return a power of two by which to multiply keys and divide queries so that neither overflows; 1 if neither would.

    A power of two changes no digit of the fixed keys.
    """
    longest_query, longest_key = np.abs(factors.queries).max() * raise_queries, np.abs(factors.keys).max()
    # An eighth of the range: exact ratios move queries a little, and a product sums several terms.
    if max(longest_query, longest_key) < torch.finfo(precision).max / 8 or min(longest_query, longest_key) == 0:
        return 1.0
    return float(2.0 ** np.round(np.log2(longest_query / longest_key) / 2))


def _short(queries: QueryTensor, keys: KeyTensor, pattern: Pattern, dtype: Dtype) -> QueryTensor:
    """Round each query to nearest, or to a grid on which no product sum rounds: whichever keeps the ratios better.

    Coordinate c of every key is a multiple of b_c, a power of two. If coordinate c of a query is a multiple of g / b_c,
    all products are multiples of g, and no sum rounds while sum |q_c k_c| <= g / unit; the smallest such g is used.
    """
    nearest, unit = queries.to(keys.dtype), UNITS[dtype]
    bits = lowest_bit(keys).amin(0)
    largest = keys.double().abs().amax(0)
    total = (queries.abs() @ largest) * (1 + 2.0**-10)  # room for the grid's own rounding
    steps = torch.exp2((total * unit).clamp(min=2.0**-1000).log2().ceil())[:, None] / bits.where(bits.isfinite(), 1.0)
    short = torch.where(largest > 0, (queries / steps).round() * steps, 0.0).to(keys.dtype)
    # The grid must be fine compared with the logits; for keys that are not short numbers it never is.
    fine = (short.double() - queries).abs() @ largest <= _FINE * total
    if not fine.any():
        return nearest
    support, weights, real = (torch.from_numpy(array) for array in pattern.padded())
    costs = []
    for some in (nearest, short):
        seen = keys[support].double()
        logits = torch.einsum("rkd,rd->rk", seen, some.double())
        rounds = torch.einsum("rkd,rd->rk", seen.abs(), some.double().abs()) * gamma(queries.shape[1], unit)
        if some is short:
            rounds = torch.where((step_of(some, keys) >= total * unit)[:, None], 0.0, rounds)
        off = logits * queries.shape[1] ** -0.5 - weights.log()
        high, low = off.masked_fill(~real, -torch.inf).amax(1), off.masked_fill(~real, torch.inf).amin(1)
        costs.append(high - low + 2 * rounds.masked_fill(~real, 0).amax(1) * queries.shape[1] ** -0.5)
    return torch.where((fine & (costs[1] < costs[0]))[:, None], short, nearest)


def _towards_ratios(queries: QueryTensor, keys: KeyTensor, pattern: Pattern) -> QueryTensor:
    """Round every coordinate up or down so that the errors cancel on the support; never worse than rounding to nearest.

    For one row let F_c be the change of its support logits when coordinate c goes to its other neighbour, and e the
    present difference of these logits from ln A (both centred over the support). Flipping c changes |e|^2 by g_c = 2 e
    . F_c + |F_c|^2, flipping c and c' by g_c + g_c' + 2 F_c . F_c'. The best flip of one or two coordinates is made
    while it helps.
    """
    nearest = queries.to(keys.dtype)
    if pattern.k == 1:
        return nearest
    other = _other_neighbour(queries, nearest)
    support, weights, real = (torch.from_numpy(array) for array in pattern.padded())
    answer = nearest.clone()
    at_once = max(1, _ELEMENTS_AT_ONCE // (queries.shape[1] * max(queries.shape[1], pattern.k)))
    for first in range(0, pattern.n, at_once):
        rows = slice(first, first + at_once)
        present = real[rows, :, None].double()
        seen = keys[support[rows]].double() * present
        seen -= seen.sum(1, keepdim=True) / present.sum(1, keepdim=True)
        seen *= present * queries.shape[1] ** -0.5
        wanted = weights[rows].log() * present[..., 0]
        wanted -= wanted.sum(1, keepdim=True) / present[..., 0].sum(1, keepdim=True)
        wanted *= present[..., 0]
        near, far = nearest[rows].double(), other[rows].double()
        best = near
        for start in range(_STARTS):
            # All rows start from the same corners: first the nearest one, then random ones.
            corner = torch.rand(near.shape[1], generator=torch.Generator().manual_seed(start)) < 0.5 * (start > 0)
            flipped = _flip(near, far, seen, wanted, corner.expand_as(near).clone())
            better = _spread(seen, wanted, flipped) < _spread(seen, wanted, best)
            best = torch.where(better[:, None], flipped, best)
        answer[rows] = best.to(keys.dtype)
    return answer


def _flip(
    near: QueryTensor,
    far: QueryTensor,
    seen: Float[Tensor, "row k width"],
    wanted: Float[Tensor, "row k"],
    at_far: Bool[Tensor, "row width"],
) -> QueryTensor:
    """Return a corner of the box that no flip of one or two coordinates improves, starting from `at_far`."""
    moving = torch.arange(len(near))
    for _ in range(_MOST_FLIPS):
        keys, here = seen[moving], torch.where(at_far, far, near)[moving]
        error = torch.einsum("rkd,rd->rk", keys, here) - wanted[moving]
        change = keys * (near + far - 2 * torch.where(at_far, far, near))[moving, None, :]
        gram = change.mT @ change
        single = 2 * torch.einsum("rkd,rk->rd", change, error) + gram.diagonal(dim1=1, dim2=2)
        pairs = single[:, :, None] + single[:, None, :] + 2 * gram
        pairs.diagonal(dim1=1, dim2=2).copy_(single)
        gain, where = pairs.flatten(1).min(1)
        helps = gain < -1e-9 * error.square().sum(1)
        if not helps.any():
            break
        moving, where = moving[helps], where[helps]
        first, second = where // near.shape[1], where % near.shape[1]
        at_far[moving, first] ^= True
        at_far[moving[first != second], second[first != second]] ^= True
    return torch.where(at_far, far, near)


def _other_neighbour(exact: QueryTensor, nearest: QueryTensor) -> QueryTensor:
    """Return the representable number on the other side of `exact`; numbers of one sign sort like their bits."""
    upwards = exact > nearest.double()
    bits = nearest.view(torch.int16)
    outwards = upwards == (nearest > 0)
    moved = torch.where(outwards, bits + 1, bits - 1)
    smallest = torch.where(upwards, 1, -(2**15) + 1).to(torch.int16)  # the bits of the smallest number of either sign
    neighbour = torch.where(nearest == 0, smallest, moved).view(nearest.dtype)
    return torch.where(neighbour.isfinite(), neighbour, nearest)


def _spread(seen: Float[Tensor, "row k width"], wanted: Float[Tensor, "row k"], queries: QueryTensor) -> Tensor:
    """Return ln(1 + ratio error) of each row: its largest minus its smallest error. Padding counts as 0."""
    error = torch.einsum("rkd,rd->rk", seen, queries) - wanted
    return error.amax(1) - error.amin(1)


class Certified(NamedTuple):
    """A head in the precision it runs in, and how well its rounded tensors realise the pattern."""

    head: Head
    certificate: Certificate


def certified(factors: Factors, pattern: Pattern, accuracy: Accuracy, method: str) -> Certified:
    """Round to the precision of the accuracy, then certify the rounded head."""
    head = rounded(factors, pattern, accuracy.dtype, method)
    return Certified(head, certify(head, pattern, accuracy))
