"""The width that the theorem of arXiv:2106.03764 asks for, by formula, in the notation of `solvers.projection`.

With exact tails. The theorem bounds every product by its worst case, |x_i| |y_j| <= k beta, and its tail by Johnson and
Lindenstrauss. A given pattern needs neither. With G of entries N(0, 1/d), and a, b standard normal of correlation
r = <x, y> / (|x| |y|), the product <Gx, Gy> is |x| |y| times the mean of d independent copies of ab, for which

    E exp(s a b)  =  (1 - 2 r s - (1 - r^2) s^2)^(-1/2)         where the bracket is positive.

Chernoff's bound, at its best s, is then for every d (not only in the limit)

    P(mean - r >= t)  <=  exp(-d I_r(t)),     I_r(t) = sup_s [ s (r + t) + 1/2 ln(1 - 2 r s - (1 - r^2) s^2) ],

and P(mean - r <= -t) <= exp(-d I_-r(t)), since -b has correlation -r. Writing u = r + t and q = 1 - r^2, the derivative
vanishes where q u s^2 + (2 r u + q) s - t = 0, so with c = 2 r u + q the best s is 2 t / (c + sqrt(c^2 + 4 q u t)).
(For r = -1 and t >= 1 there is none: the mean of -a^2 is never above 0, and I is infinite.)

All logits are within delta of their target unless one of the pairs fails with t_ij = delta / (|x_i| |y_j|). The width
is the least d for which the sum of these probabilities over all pairs is at most 1/2. The promise and the construction
are the same, and no constant is lost: only the union over pairs is not exact to first order in the exponent.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float


class Theorem(NamedTuple):
    """The width, the probability that one draw succeeds at it, and the largest expected number of draws."""

    width: int
    success_at_least: float = 0.5
    draws_at_most: float = 2.0


def theorem_width(n: int, k: float | int, spread: float, ratio_error: float, zero_ratio: float) -> Theorem:
    """Return the width for n x n patterns with k non-zeros in rows and columns and ratios up to `spread` in a row.

    Johnson-Lindenstrauss for |Gx|^2 and the polarised <Gx, Gy> = (|G(x+y)|^2 - |G(x-y)|^2) / 4 give, for G with
    entries N(0, 1/d), P(|<Gx, Gy> - <x, y>| > t |x| |y|) <= 4 exp(-d (t^2 - t^3) / 4). With B = U S V^T, x_i = S^1/2
    U_i and y_j = S^1/2 V_j, so |x_i| |y_j| <= ||B||_2 <= sqrt(||B||_1 ||B||_inf) <= k beta, beta = ln(spread / e2) +
    2 delta. Hence t = delta / (k beta) keeps all n^2 logits within delta unless one of n^2 events of that probability
    happens; d >= 4 ln(8 n^2) / (t^2 - t^3) makes their sum 1/2. Where columns are fuller than rows, k is sqrt(rows' k
    * columns' k).
    """
    return _width(float(k), n * n, spread, ratio_error, zero_ratio)


def theorem_width_rows(n: int, k: float | int, spread: float, ratio_error: float, zero_ratio: float) -> Theorem:
    """Return the width for queries B G and keys G: x_i = B_i, y_j = e_j, so |x_i| |y_j| <= sqrt(k) beta for any
    columns.
    """
    return _width(math.sqrt(k), n * n, spread, ratio_error, zero_ratio)


def _width(norm_over_beta: float, pairs: int, spread: float, ratio_error: float, zero_ratio: float) -> Theorem:
    delta = math.log1p(ratio_error) / 2
    beta = math.log(spread / zero_ratio) + 2 * delta
    # Norms far below the bound could make t large; the JL bound is useless beyond the maximum of t^2 - t^3 at t = 2/3.
    t = min(delta / (norm_over_beta * beta), 2 / 3)
    return Theorem(math.ceil(4 * math.log(8 * pairs) / (t**2 - t**3)))


BLOCK_ELEMENTS = 2**22
WIDEST = 2**40


def rate(r: Float[np.ndarray, "*shape"], t: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """Return I_r(t) for |r| <= 1 and t > 0."""
    u, q = r + t, np.maximum(1 - r * r, 0.0)
    c = 2 * r * u + q
    with np.errstate(divide="ignore", invalid="ignore"):
        s = 2 * t / (c + np.sqrt(np.maximum(c * c + 4 * q * u * t, 0.0)))
        inside = 1 - 2 * r * s - q * s * s
        exponent = s * u + 0.5 * np.log(inside)
    return np.asarray(np.where((s > 0) & (inside > 0) & np.isfinite(s), np.maximum(exponent, 0.0), np.inf))


def exact_tail_width(queries: Float[np.ndarray, "row rank"], keys: Float[np.ndarray, "key rank"], delta: float) -> int:
    """Return the least width at which a Gaussian draw keeps all products within delta with probability 1/2."""
    step = max(1, BLOCK_ELEMENTS // len(keys))
    rates = np.concatenate([_rates(queries[i : i + step], keys, delta) for i in range(0, len(queries), step)])
    if not len(rates):
        return 1
    high = 1
    while _fails(rates, high) and high < WIDEST:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _fails(rates, middle) else (low, middle)
    return high


def _rates(
    queries: Float[np.ndarray, "some_rows rank"], keys: Float[np.ndarray, "key rank"], delta: float
) -> Float[np.ndarray, " finite"]:
    """Return the rates I of both tails of every pair. Products with a zero vector are exact and have no rate."""
    size = np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(keys, axis=1)
    there = size > 0
    r, t = np.clip((queries @ keys.T)[there] / size[there], -1.0, 1.0), delta / size[there]
    both = np.concatenate([rate(r, t), rate(-r, t)])
    return np.asarray(both[np.isfinite(both)])


def _fails(rates: Float[np.ndarray, " pair"], width: int) -> bool:
    return bool(np.exp(-width * rates).sum() > 0.5)
