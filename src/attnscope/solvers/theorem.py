"""The width that the theorem of arXiv:2106.03764 asks for, by formula. The notation is that of `solvers.projection`."""

from __future__ import annotations

import math
from typing import NamedTuple


class Theorem(NamedTuple):
    """What the theorem promises: at `width` one draw succeeds with this probability, so this many are expected."""

    width: int
    success_at_least: float = 0.5
    draws_at_most: float = 2.0


def theorem_width(n: int, k: float | int, spread: float, ratio_error: float, zero_ratio: float) -> Theorem:
    """The theorem's width for n x n patterns with k non-zeros in rows and columns and ratios up to `spread` in a row.

    Johnson-Lindenstrauss for |Gx|^2 and the polarised <Gx, Gy> = (|G(x+y)|^2 - |G(x-y)|^2) / 4 give, for G with
    entries N(0, 1/d), P(|<Gx, Gy> - <x, y>| > t |x| |y|) <= 4 exp(-d (t^2 - t^3) / 4). With B = U S V^T, x_i = S^1/2
    U_i and y_j = S^1/2 V_j, so |x_i| |y_j| <= ||B||_2 <= sqrt(||B||_1 ||B||_inf) <= k beta, beta = ln(spread / e2) +
    2 delta. Hence t = delta / (k beta) keeps all n^2 logits within delta unless one of n^2 events of that probability
    happens; d >= 4 ln(8 n^2) / (t^2 - t^3) makes their sum 1/2. Where columns are fuller than rows, k is sqrt(rows' k
    * columns' k).
    """
    return _width(float(k), n * n, spread, ratio_error, zero_ratio)


def theorem_width_rows(n: int, k: float | int, spread: float, ratio_error: float, zero_ratio: float) -> Theorem:
    """The width for Q = B G, K = G: x_i = B_i, y_j = e_j, so |x_i| |y_j| <= sqrt(k) beta and columns may be full."""
    return _width(math.sqrt(k), n * n, spread, ratio_error, zero_ratio)


def _width(norm_over_beta: float, pairs: int, spread: float, ratio_error: float, zero_ratio: float) -> Theorem:
    delta = math.log1p(ratio_error) / 2
    beta = math.log(spread / zero_ratio) + 2 * delta
    # norms far below the bound could make t large; JL says nothing beyond its maximum of t^2 - t^3 at t = 2/3
    t = min(delta / (norm_over_beta * beta), 2 / 3)
    return Theorem(math.ceil(4 * math.log(8 * pairs) / (t**2 - t**3)))
