"""A proof that keys on the moment curve serve every row of up to k keys, by bounds for the worst row.

No number of trials can show that keys serve all patterns. On the moment curve there is a bound: the keys are evenly
spaced on a circle, so it is known how near a key can come to any support.

The query. Let S be the s <= k keys of a row at angles t_i and F(t) = prod over i in S of 4 sin^2((t - t_i) / 2): zero
on S, above zero on all other keys, a trigonometric polynomial of degree s. Let L_j(t) be the same product without j
over its value at t_j: 1 at t_j, 0 on the rest of S, nowhere below 0, degree s - 1. With r_j = ln(A_j / largest A of the
row), between -rho = -ln(spread) and 0, take

    s(t) = -b F(t) + sum_j r_j L_j(t).

On S this is r_j: ratios are exact. Off S it is at most -b F(t), since no r_j is above 0 and no L_j below 0. Its degree
fits width 2k, and softmax does not see its constant term, which the keys lack. (`moment_curve` has simple zeros on
neighbours and smaller logits; this query is chosen for the proof over all supports.) Causal masks only hide keys off S.

The gap. Indices on a circle: at most two keys are at each distance from a key. If the nearest key of S is m steps from
t, the i-th nearest is m - 1 + ceil(i / 2) steps or more, so that, with w_x = 4 sin^2(pi min(x, n/2) / n),

    F(t)  >=  G(m) = prod_{i=1..s} w_(m - 1 + ceil(i/2)),
    prod over i in S, i != j of 4 sin^2((t_j - t_i) / 2)  >=  M = prod_{i=1..s-1} w_ceil(i/2),

the first for t off S, the second for j in S. There are at most 2s keys with their nearest at m steps and n - s in all,
and G rises with m. So sum over t off S of exp(-b F(t)) <= Z(b), the sum of exp(-b G(m)) with 2s keys at m = 1, 2s at m
= 2, and so on until n - s are placed.

The size. In a polynomial sum a_h e^(iht), harmonic h > 0 takes two coordinates of the query, of length 2 |a_h|, against
cos ht and sin ht of the key, of length 1. So N = sum over h != 0 of |a_h| bounds sum_c |q_c k_c|. F is prod (w - u_i)^2
up to a factor of modulus 1, w = e^(it) and u_i on the unit circle, so |a_h| <= C(2s, s + h), and

    N(F) <= 4^s - C(2s, s),    N(sum r_j L_j) <= rho (s - 1) (4^(s-1) - C(2s-2, s-1)) / M,    N = b N(F) + the latter,

one of the r_j being 0.

What is stored. v is the unit roundoff of the precision (2^-24 more in half precision, which torch reaches by way of
float32), `tiny` its smallest number. Keys are off by v times themselves, 2^-48 and tiny; queries by v times themselves
and tiny, and by C, the error of computing a_h in float64: u_i is right to 2^-48, a step of the product multiplies
three terms and adds them, and r_j is off by 2^-52 however small it is, so with all harmonics counted
C <= 2^-46 s (b 4^s + (rho + 1) (s - 1) 4^(s-1) / M). Hence every stored logit is within

    E0 = N (2 v + v^2 + 2^-45) + 1.02 (C + (sqrt(d) + 2 N) tiny) + gamma_(d+1)(2^-53) N'

of s(t) less the constant, the last term for the float64 of the certificate itself, and the certificate's own allowance
for sums (`heads.certificate`, (1); (2) is never more) is at most E1 = (gamma_(d+1)(u) + gamma_(d+1)(2^-53)) N', where
N' = 1.0001 (1 + v)^2 (N + C) + sqrt(d) tiny bounds sum |q_c k_c| of the stored numbers. The scale's rounding costs u
times the distance from the peak. So the certificate finds at most

    ln(1 + ratio error)  <=  2 E0 + 2 E1 + 2 u (rho + 2 E0)                                 (0 for a row of one key)
    ln(leak / (1 - leak))  <=  ln Z(b (1 - u)) + 2 E0 (1 + u) + 2 E1,

the latter because the stored peak is at most E0 below 0, and its own term is exp(-E1). b is the smallest that meets the
required leak. Nothing here depends on S, so this holds for all supports; and b depends on s alone. QED
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Complex, Float, Int

from attnscope.core.errors import RefusalError
from attnscope.heads.accuracy import Accuracy, Dtype, KeyArray
from attnscope.heads.certificate import HERE, UNITS, gamma
from attnscope.heads.facts import ROOM, Universality, WorstSupport
from attnscope.heads.head import Head
from attnscope.heads.pattern import Pattern

HALVINGS = 80
MORE = 1 + 1e-5  # covers products of errors in the certificate


def curve(n_keys: int, width: int) -> KeyArray:
    """Return points of the trigonometric moment curve: key j is (cos t, sin t, cos 2t, ...) at t = 2 pi j / n.

    An odd width ends with a 0. Angles are reduced as integers. Divided and rounded they are off by 3 units in the last
    place of a number below 2 pi, so every coordinate is right to 2^-48, which the proof relies on.
    """
    harmonic = np.arange(1, width // 2 + 1)
    angle = 2 * np.pi * (np.arange(n_keys)[:, None] * harmonic % n_keys) / n_keys
    points = np.zeros((n_keys, width))
    points[:, 0 : 2 * len(harmonic) : 2], points[:, 1 : 2 * len(harmonic) : 2] = np.cos(angle), np.sin(angle)
    return points


def universality(n: int, k: int, spread: float, accuracy: Accuracy, width: int | None = None) -> Universality:
    """Bound the worst of all rows of up to k of n keys with weights within a factor `spread`, at width 2k or more."""
    largest = min(k, n)
    d = 2 * largest if width is None else width
    if k < 1 or n < 1 or not 1 <= spread < math.inf:
        raise RefusalError("Universality needs k >= 1, n >= 1 and a finite spread >= 1: give such numbers.")
    if d < 2 * largest:
        raise RefusalError(f"The curve serves all rows of {largest} keys from width {2 * largest} on: ask for that.")
    sizes = tuple(_worst(n, size, math.log(spread), d, accuracy) for size in range(1, largest + 1))
    most = torch.finfo(getattr(torch, accuracy.dtype)).max / 2
    fits = all(math.sqrt(d) * worst.amplitude < most for worst in sizes)
    return Universality(n, largest, d, accuracy.dtype, spread, accuracy.ratio_error, accuracy.leak, sizes, fits)


def universality_of(keys: torch.Tensor, k: int, spread: float, accuracy: Accuracy) -> Universality | None:
    """Return the bounds for stored keys; None if they are too narrow or not exactly the keys of the curve."""
    n, width = keys.shape
    stored = torch.from_numpy(curve(n, width)).to(getattr(torch, accuracy.dtype))
    if width < 2 * min(k, n) or keys.dtype != stored.dtype or not torch.equal(keys, stored):
        return None
    return universality(n, k, spread, accuracy, width)


def universal_head(pattern: Pattern, proof: Universality) -> Head:
    """Return the head of the proof for a pattern that it covers: always the same keys, and queries by formula."""
    if not proof.proved:
        raise RefusalError("These keys are not proved to serve every pattern: compile this one instead.")
    if pattern.n_keys != proof.n or pattern.k > proof.k or pattern.spread > proof.spread * (1 + 1e-12):
        raise RefusalError(
            f"The proof is about rows of up to {proof.k} of {proof.n} keys with weights within a factor "
            f"{proof.spread:g}: ask for one about {pattern.k} of {pattern.n_keys} within {pattern.spread:g}."
        )
    precision: torch.dtype = getattr(torch, proof.dtype)
    queries = torch.from_numpy(queries_of_proof(pattern, proof) * proof.d**0.5).to(precision)
    keys = torch.from_numpy(curve(proof.n, proof.d)).to(precision)
    return Head(queries, keys, pattern.causal, "moment_curve", {"universal": "proved"})


def queries_of_proof(pattern: Pattern, proof: Universality) -> Float[np.ndarray, "row width"]:
    """Return the coefficients of s(t) for every row, before they are multiplied by sqrt(width) and stored."""
    answer = np.zeros((pattern.n, proof.d))
    for worst in proof.sizes:
        rows = np.flatnonzero(pattern.counts == worst.size)
        if not len(rows):
            continue
        at = pattern.starts[rows][:, None] + np.arange(worst.size)
        support, weights = pattern.columns[at], pattern.weights[at]
        wanted = np.log(weights / weights.max(axis=1, keepdims=True))
        laurent = -worst.sharpness * _product(support, proof.n)
        for j in range(worst.size):
            others = np.delete(support, j, axis=1)
            value = np.prod(_squares(np.abs(others - support[:, j : j + 1]), proof.n), axis=1)
            laurent[:, 1:-1] += (wanted[:, j] / value)[:, None] * _product(others, proof.n)
        above = laurent[:, worst.size + 1 :]
        answer[rows, 0 : 2 * worst.size : 2], answer[rows, 1 : 2 * worst.size : 2] = 2 * above.real, -2 * above.imag
    return answer


def _product(keys: Int[np.ndarray, "row some"], n: int) -> Complex[np.ndarray, "row harmonic"]:
    """Return the coefficients of e^(iht), h = -s to s, of the product of 4 sin^2((t - a) / 2) over s keys at angles a.

    One factor is 2 - e^(i(t - a)) - e^(-i(t - a)).
    """
    answer = np.ones((len(keys), 1), dtype=np.complex128)
    for root in np.exp(2j * np.pi * keys / n).T[..., None]:
        up, middle, down = (np.pad(answer, ((0, 0), (shift, 2 - shift))) for shift in (2, 1, 0))
        answer = 2 * middle - root.conj() * up - root * down
    return answer


def _squares(steps: Int[np.ndarray, "*shape"], n: int) -> Float[np.ndarray, "*shape"]:
    """Return w of the derivation: 4 sin^2 of half the smaller angle between keys that many steps apart."""
    return np.asarray(4 * np.sin(np.pi * np.minimum(steps, n - steps) / n) ** 2)


def _worst(n: int, size: int, rho: float, d: int, accuracy: Accuracy) -> WorstSupport:
    steps = np.arange(1, n // 2 + 1)
    nearest = (np.arange(size) // 2)[None, :] + steps[:, None]  # m - 1 + ceil(i / 2)
    gaps = np.prod(_squares(np.minimum(nearest, n // 2), n), axis=1)
    counts = np.clip((n - size) - 2 * size * np.arange(len(steps)), 0, 2 * size)
    beside = counts > 0
    gaps, counts = gaps[beside], counts[beside]
    inside = float(np.prod(_squares((np.arange(size - 1) // 2) + 1, n)))
    of_ratios = rho * (size - 1) / inside
    rounding = _rounding(accuracy.dtype, d)
    unit = UNITS[accuracy.dtype] * MORE

    def errors(b: float) -> WorstSupport:
        amplitude = b * _harmonics(size) + of_ratios * _harmonics(size - 1)
        computing = 2.0**-46 * size * (b * 4.0**size + (rho + 1) * (size - 1) / inside * 4.0 ** (size - 1))
        stored, summed = rounding(amplitude, computing)
        ratio = 2 * stored + 2 * summed + 2 * unit * (rho + 2 * stored)
        odds = _log_sum(b * (1 - unit), gaps, counts) + 2 * stored * (1 + unit) + 2 * summed
        return WorstSupport(
            size=size,
            gap=float(gaps[0]) if len(gaps) else math.inf,
            sharpness=b,
            amplitude=amplitude,
            rounding=stored + summed,
            ratio_error=math.expm1(min(ratio, 700.0)) if size > 1 else 0.0,
            leak=1 / (1 + math.exp(-odds)) if odds > -700 else 0.0,
        )

    return errors(_sharpness(lambda b: errors(b).leak, accuracy.leak * ROOM, gaps))


def _sharpness(leak: Callable[[float], float], limit: float, gaps: Float[np.ndarray, " step"]) -> float:
    """Return the smallest b with a leak of at most `limit`, else the b of least leak; its log-odds are convex in b."""
    if not len(gaps):
        return 0.0
    low, high = 0.0, 1.0 / float(gaps[0])
    while leak(high) > limit and leak(2 * high) < leak(high):
        low, high = high, 2 * high
    if leak(high) > limit:  # the minimum is passed: this leak cannot be reached by doubling b
        low, high = low / 2, 2 * high
        for _ in range(HALVINGS):
            left, right = low + (high - low) / 3, high - (high - low) / 3
            low, high = (low, right) if leak(left) <= leak(right) else (left, high)
        if leak(high) > limit:
            return high
        low = 0.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if leak(middle) <= limit else (middle, high)
    return high


def _rounding(dtype: Dtype, d: int) -> Callable[[float, float], tuple[float, float]]:
    """Return the function that computes E0 and E1 of the derivation from N and C."""
    info = torch.finfo(getattr(torch, dtype))
    v = info.eps / 2 + (2.0**-24 if dtype in ("bfloat16", "float16") else 0.0)
    tiny, root = info.smallest_normal * info.eps, math.sqrt(d)
    here, sums = gamma(d + 1, HERE), gamma(d + 1, UNITS[dtype])

    def of(amplitude: float, computing: float) -> tuple[float, float]:
        size = 1.0001 * (1 + v) ** 2 * (amplitude + computing) + root * tiny
        stored = amplitude * (2 * v + v * v + 2.0**-45) + 1.02 * (computing + (root + 2 * amplitude) * tiny)
        return stored + here * size, (sums + here) * size * MORE

    return of


def _harmonics(size: int) -> float:
    """Return 4^s - C(2s, s), the bound on N(F) in the derivation."""
    return 4.0**size - math.comb(2 * size, size)


def _log_sum(b: float, gaps: Float[np.ndarray, " step"], counts: Int[np.ndarray, " step"]) -> float:
    """Return ln Z(b); ln 0 if there is no key off the support."""
    if not len(gaps):
        return -math.inf
    return float(-b * gaps[0] + math.log(float((counts * np.exp(-b * (gaps - gaps[0]))).sum())))
