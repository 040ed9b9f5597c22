"""Keys on the trigonometric moment curve: width 2k for any number of keys, at the price of large logits.

Derivation. Put key j at angle t_j = 2 pi j / m on the curve c(t) = (cos t, sin t, cos 2t, sin 2t, ..., cos gt, sin
gt): a circle for g = 1, the vertices of a cyclic polytope in general. A query is then a trigonometric polynomial of
degree g without constant term, and row constants do not matter to softmax. For a support S choose zeros z_1..z_2g and

    P(t) = -prod_i 2 sin((t - z_i) / 2),

which is such a polynomial: an even number of factors makes it periodic with period 2 pi and degree g. It vanishes on S
and is negative on every other key that the query sees, if each run of neighbouring support keys carries an even number
of zeros: all its keys once, and the middle one twice where the run is odd. (Gale's evenness condition: between two runs
an even number of signs has changed.) A run of r keys costs ceil(r / 2) degrees, so 2k is the worst case, isolated keys;
keys hidden by a causal mask are not neighbours, but the first and the last visible key of a row are. For k = 1, P =
cos(t - t_j) - 1.

All support keys now share the largest logit. R is the smallest query with R . c(t_j) = ln A_ij + const on S; then
s_ij = (b P + R) . c(t_j) has exact ratios for every b, and the leak falls with b. With R shifted so that its
exponentials sum to 1 on S, b solves

    f(b) = ln sum over visible j not in S of exp(R_j - b |P_j|)  =  ln(leak / (1 - leak)).

f is convex and decreasing, so Newton's method rises to b from any point below it. The largest (R_j - wanted) / |P_j|,
at which one zero alone has the whole leak, is such a point. QED

Rounding grows with b, as b |P| does: at b = 1 it can bring the support and key j closer by the bounds (1) of
`heads.certificate` for both, which are subtracted from |P_j| before solving for b. (If nothing is left there is no
solution.)

The price: |P| is (2 pi / m)^2 next to an isolated key and smaller by the squared distance to each further support key,
so b grows like m^2 (k = 1) to m^(2k) (clustered supports); precision p can hold logits up to about 2^p. `largest_n`
measures the limit. The keys depend only on their number and the width.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Int

from attnscope.core.construction import construction
from attnscope.core.errors import RefusalError
from attnscope.core.progress import Advance, silent
from attnscope.heads.accuracy import Accuracy, Dtype, Factors, QueryArray, with_exact_ratios
from attnscope.heads.certificate import rounding_of_one
from attnscope.heads.generate import union_of_permutations
from attnscope.heads.pattern import Pattern
from attnscope.heads.rounding import certified
from attnscope.heads.solvers.universality import curve, universality

ROOM_FOR_ROUNDING = 0.5  # share of the allowed leak to aim at
BLOCK_ELEMENTS = 2**22
RowsByKeys = Float[np.ndarray, "some_rows key"]
NEWTON_STEPS = 60
LEAST_LEFT = 0.1  # share of |P| that must remain after rounding for a larger b to help


def zeros_of(support: Int[np.ndarray, " entry"], visible: int) -> list[int]:
    """Return the zeros of a row as key indices: every key of a run once, and the middle key of an odd run twice."""
    if len(support) == visible:
        return []
    runs = [list(run) for run in np.split(support, np.flatnonzero(np.diff(support) > 1) + 1)]
    if len(runs) > 1 and runs[0][0] == 0 and runs[-1][-1] == visible - 1:
        runs[0] = runs.pop() + runs[0]
    return [int(key) for run in runs for key in (run + [run[len(run) // 2]] * (len(run) % 2))]


def needed_width(pattern: Pattern) -> int:
    """Return twice the largest degree: 2k for isolated keys, k for windows of an even length, at least 2."""
    zeros = [len(zeros_of(pattern.columns[a:b], int(seen))) for a, b, seen in _row_slices(pattern)]
    return max(2, *zeros)


def _row_slices(pattern: Pattern) -> Iterator[tuple[int, int, int]]:
    return zip(pattern.starts[:-1], pattern.starts[1:], pattern.visible, strict=True)


@construction(
    title="Moment curve",
    summary="Keys on the trigonometric moment curve, queries that are polynomials with zeros on the support.",
    citation="D. Gale, Neighborly and cyclic polytopes, Proc. Symp. Pure Math. 7 (1963); arXiv:2106.03764",
    universal=True,
    auto="ceiling",
    fixed_width=needed_width,
)
def moment_curve(
    pattern: Pattern, width: int, accuracy: Accuracy, rng: np.random.Generator, advance: Advance = silent
) -> Factors:
    """Return the head that the derivation constructs. Nothing is random. A larger width only changes the keys."""
    needed = needed_width(pattern)
    if width < needed:
        raise RefusalError(
            f"The moment curve needs width {needed} for this pattern, not {width}: use joint, which has no fixed width."
        )
    keys = curve(pattern.n_keys, width)
    smallest = with_exact_ratios(np.zeros((pattern.n, width)), keys, pattern)
    directions = _polynomials(pattern, width)
    products = np.zeros(pattern.n)
    step = max(1, BLOCK_ELEMENTS // pattern.n_keys)
    off = rounding_of_one(accuracy.dtype, width)
    for first in range(0, pattern.n, step):
        rows = slice(first, min(first + step, pattern.n))
        sizes = off * (np.abs(directions[rows]) @ np.abs(keys).T)
        products[rows] = _sharpness(pattern, rows, smallest[rows] @ keys.T, accuracy.leak * ROOM_FOR_ROUNDING, sizes)
        advance("sharpening rows", rows.stop, pattern.n)
    if pattern.k == 1:  # rows of one key have no ratios to spoil, so all get the largest b
        products[:] = max(products.max(), _proved_sharpness(pattern.n_keys, width, accuracy))
    queries = products[:, None] * directions + smallest
    largest = max(float(np.abs(queries[first : first + step] @ keys.T).max()) for first in range(0, pattern.n, step))
    notes = {"needed_width": needed, "largest_logit": largest, "sharpness": float(products.max())}
    return Factors(queries, keys, notes)


def _proved_sharpness(n_keys: int, width: int, accuracy: Accuracy) -> float:
    """Return a sharpness proved to serve every row of one key, including rounding to half precision."""
    proof = universality(n_keys, 1, 1.0, accuracy, width)
    return proof.sizes[0].sharpness if proof.proved else 0.0


def _polynomials(pattern: Pattern, width: int) -> QueryArray:
    """Return the coefficients of P for every row.

    With w = e^(it) and u_i = e^(i z_i): 2 sin((t - z) / 2) = (w - u) / (i sqrt(w u)), so the product of 2g factors is
    (-1)^g w^(-g) prod u_i^(-1/2) prod (w - u_i). If a_h is its coefficient of w^h, P has 2 Re a_h at cos ht and
    -2 Im a_h at sin ht. The sign of all of it is fixed by one visible zero of the pattern.
    """
    answer = np.zeros((pattern.n, width))
    zeros = [zeros_of(pattern.columns[a:b], int(seen)) for a, b, seen in _row_slices(pattern)]
    lengths = np.array([len(z) for z in zeros])
    for length in np.unique(lengths[lengths > 0]):
        rows, degree = np.flatnonzero(lengths == length), int(length) // 2
        angles = 2 * np.pi * np.array([zeros[i] for i in rows]) / pattern.n_keys
        product = np.ones((len(rows), 1), dtype=np.complex128)
        for root in np.exp(1j * angles).T:
            product = np.pad(product, ((0, 0), (1, 0))) - root[:, None] * np.pad(product, ((0, 0), (0, 1)))
        above = product[:, degree + 1 :] * ((-1) ** degree * np.exp(-0.5j * angles.sum(axis=1)))[:, None]
        away = 2 * np.pi * np.array([_first_zero(pattern, int(i)) for i in rows]) / pattern.n_keys
        sign = -np.sign(np.prod(np.sin((away[:, None] - angles) / 2), axis=1))
        answer[rows, 0 : 2 * degree : 2] = 2 * above.real * sign[:, None]
        answer[rows, 1 : 2 * degree : 2] = -2 * above.imag * sign[:, None]
    return answer


def _first_zero(pattern: Pattern, row: int) -> int:
    support = pattern.columns[pattern.starts[row] : pattern.starts[row + 1]]
    gap = np.flatnonzero(support != np.arange(len(support)))
    return int(gap[0]) if len(gap) else len(support)


def _sharpness(
    pattern: Pattern, rows: slice, smallest: RowsByKeys, leak: float, rounding: RowsByKeys
) -> Float[np.ndarray, " some_rows"]:
    """Return the factor b of the derivation for some rows.

    |P| is computed as a product, because its coefficients cancel near zeros. `rounding`, the bound for each logit at b
    = 1, is subtracted from |P|.
    """
    n_keys = pattern.n_keys
    steps = np.arange(-n_keys, n_keys)
    factor = 2 * np.abs(np.sin(np.pi * steps / n_keys))
    depth = np.ones_like(smallest)
    on = np.zeros_like(smallest, dtype=bool)
    for index, row in enumerate(range(rows.start, rows.stop)):
        support = pattern.columns[pattern.starts[row] : pattern.starts[row + 1]]
        on[index, support] = True
        for zero in zeros_of(support, int(pattern.visible[row])):
            depth[index] *= factor[n_keys - zero : 2 * n_keys - zero]
    hidden = np.arange(n_keys) >= pattern.visible[rows, None]
    left = depth - rounding - np.where(on, rounding, 0.0).max(axis=1, keepdims=True)
    depth = np.where(left > LEAST_LEFT * depth, left, depth)  # if rounding exceeds it, no b helps
    level = np.where(on, smallest, -np.inf)
    shift = level.max(axis=1, keepdims=True)
    shift += np.log(np.exp(level - shift).sum(axis=1, keepdims=True))
    height = np.where(on | hidden, -np.inf, smallest - shift)
    wanted = math.log(leak / (1 - leak))
    depth[on | hidden] = 1.0
    sharp = np.maximum(((height - wanted) / depth).max(axis=1), 0.0)
    for _ in range(NEWTON_STEPS):
        logits = height - sharp[:, None] * depth
        peak = np.maximum(logits.max(axis=1, keepdims=True), -1e300)
        share = np.exp(logits - peak)
        total = share.sum(axis=1)
        excess = peak[:, 0] + np.log(np.maximum(total, 1e-300)) - wanted
        step = np.maximum(excess, 0.0) * total / np.maximum((share * depth).sum(axis=1), 1e-300)
        sharp += step
        if (step <= 1e-9 * sharp).all():
            break
    return np.asarray(sharp)


def largest_n(dtype: Dtype, k: int, seed: int = 0, most: int = 4096) -> int:
    """Return the largest n at which a union of k permutations is certified at width 2k, found by doubling and halving.

    The answer is measured, not proved: rounding is not smooth in n, and a larger n may pass by luck.
    """
    accuracy = Accuracy(dtype=dtype)

    def holds(n: int) -> bool:
        pattern = union_of_permutations(n, k, seed)
        factors = moment_curve(pattern, 2 * k, accuracy, np.random.default_rng(seed))
        return certified(factors, pattern, accuracy, "moment_curve").certificate.reached

    good, bad = k, 2 * k
    while bad <= most and holds(bad):
        good, bad = bad, 2 * bad
    if bad > most:
        return good
    while bad - good > max(1, good // 64):
        middle = (good + bad) // 2
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    return good
