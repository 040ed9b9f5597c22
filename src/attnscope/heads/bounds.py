"""Lower bounds on the width of a head, each with its proof: no construction can be narrower.

A bound is a proof (`Bound.proves`) if every head of the required accuracy obeys it for this very pattern. Two kinds are
not: bounds on keys that must serve all supports (unless that is required), and bounds that hold for most patterns
("typical").

Separation. For a row with support S write s_j for its logits, a for its smallest entry, e for the ratio error, L for
the leak and Z for the sum of exp(s_j) over S. Ratios are kept within 1 + e, so exp(s_j) / A_j varies by that factor at
most, and the smallest share on S is at least a / (a + (1 + e)(1 - a)) of Z (worst case: its own factor lowest, all
others highest). A zero has at most L / (1 - L) of Z. Therefore every row with

    L / (1 - L) < a / (a + (1 + e)(1 - a))                                                                  (*)

has every support logit above the logit of every visible zero: a threshold tau_i separates q_i . k_j on the support from
the rest, a half-space of key space cuts S out, and [s_ij - tau_i] is a matrix of rank d + 1 with the pattern's signs.
Bounds that need (*) ignore rows that do not fulfil it; a lower bound for some rows holds for the whole pattern.

Causal masks hide entries, so signs above the diagonal are free. Rows i >= r see all keys j <= r: such rectangles are
fully visible, and `line`, `cuts` and `signs` are proved on them. `ratios` reads supports only and needs no change.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Int

from attnscope.core.errors import RefusalError
from attnscope.heads.accuracy import Accuracy
from attnscope.heads.facts import Bound, Bounds
from attnscope.heads.pattern import Pattern
from attnscope.heads.reduction import chains
from attnscope.heads.signs import SignRank, logit_floor, sign_rank, typical_logit_floor

if TYPE_CHECKING:  # bounds without a pattern need no scipy
    from scipy.sparse import csr_array

RECTANGLES = 12  # number of fully visible rectangles to try in a causal pattern
POINTS = (3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 62)  # numbers of keys or rows whose cuts are counted
MOST_SUPPORTS = 64
LARGEST = 3  # number of rectangles whose norm is computed
SHORTEST_CYCLE = 5


def lower_bounds(pattern: Pattern, accuracy: Accuracy, universal: bool = False) -> Bounds:
    """Return every bound for this pattern. With `universal`, the keys must serve all patterns of its size and k."""
    kept = separated_rows(pattern, accuracy)
    rectangles = visible_rectangles(pattern, kept)
    least = min(pattern.k, int((pattern.visible - pattern.counts).max()))
    bounds = (
        _one(),
        _line(rectangles),
        _cuts(rectangles),
        _signs(rectangles),
        _ratios(pattern, accuracy),
        _cycle(pattern, kept),
        _radon(int(pattern.visible.max()), max(least, 0), accuracy, universal),
        _typical(pattern.visible[kept], pattern.counts[kept], pattern.n_keys),
    )
    return Bounds(bounds, logit_floor(pattern, accuracy))


def bounds_for(n: int, k: int, accuracy: Accuracy, universal: bool = True, causal: bool = False) -> Bounds:
    """Return the bounds that need no pattern, for n tokens and rows of k equal entries (`universal`: see
    `lower_bounds`).
    """
    if not 1 <= k <= n:
        raise RefusalError(f"Rows of {k} entries do not fit {n} keys: choose k between 1 and n.")
    visible = np.arange(1, n + 1) if causal else np.full(n, n)
    counts = np.minimum(visible, k)
    kept = np.asarray(_separates(1 / counts, accuracy))
    bounds = (_one(), _radon(n, min(k, n - k), accuracy, universal), _typical(visible[kept], counts[kept], n))
    return Bounds(bounds, typical_logit_floor(n, k, accuracy))


def separated_rows(pattern: Pattern, accuracy: Accuracy) -> Bool[np.ndarray, " row"]:
    """Return which rows fulfil the condition (*) of this module."""
    return np.asarray(_separates(np.minimum.reduceat(pattern.weights, pattern.starts[:-1]), accuracy))


def _separates(lowest: Any, accuracy: Accuracy) -> Any:
    share = lowest / (lowest + (1 + accuracy.ratio_error) * (1 - lowest))
    # The last factor ensures that a tie in floating point never counts as a proof.
    return accuracy.leak / (1 - accuracy.leak) < share * (1 - 1e-9)


def visible_rectangles(pattern: Pattern, kept: Bool[np.ndarray, " row"]) -> list[csr_array]:
    """Return 0/1 matrices of separated rows and the keys that all of them see: one, or several if the pattern is
    causal.
    """
    from scipy.sparse import csr_array

    ones = csr_array((np.ones(len(pattern.columns)), pattern.columns, pattern.starts), (pattern.n, pattern.n_keys))
    if not pattern.causal:
        return [ones[np.flatnonzero(kept)]] if kept.any() else []
    last = min(pattern.n, pattern.n_keys) - 1
    halves = {2**i - 1 for i in range(1, last.bit_length() + 1) if 2**i - 1 <= last}
    corners = sorted({round(c) for c in np.linspace(0, last, RECTANGLES)} | set(range(min(8, last + 1))) | halves)
    rectangles = [ones[np.flatnonzero(kept & (np.arange(pattern.n) >= r))][:, : r + 1] for r in corners]
    return [rectangle for rectangle in rectangles if rectangle.shape[0]]


def _one() -> Bound:
    return Bound("one", 1, True, "A head has at least one coordinate.", "by definition")


def _line(rectangles: list[csr_array]) -> Bound:
    """On a line a half-space is a ray, so every support is a prefix or a suffix of the keys in their order along the
    line.

    Of three supports two are of the same kind, and two prefixes (or suffixes) are nested. Three supports of which none
    contains another therefore need width 2. Different supports of one size never contain each other.
    """
    needs = any(_three_incomparable(rectangle) for rectangle in rectangles)
    statement = (
        "Three supports, none inside another, cannot be cut out of a line from its two ends."
        if needs
        else "No three supports were found of which none contains another."
    )
    return Bound("line", 2 if needs else 1, True, statement, "half-spaces of a line are rays")


def _three_incomparable(rectangle: csr_array) -> bool:
    by_size: dict[int, set[frozenset[int]]] = {}
    for row in np.split(rectangle.indices, rectangle.indptr[1:-1]):
        if len(row):
            same = by_size.setdefault(len(row), set())
            same.add(frozenset(row.tolist()))
            if len(same) == 3:
                return True
    few = [support for same in by_size.values() for support in same][:MOST_SUPPORTS]
    excludes = [{b for b, other in enumerate(few) if not (mine <= other or other <= mine)} for mine in few]
    return any(excludes[a] & excludes[b] for a in range(len(few)) for b in excludes[a])


def dichotomies(points: int, width: int) -> int:
    """Return Cover's bound (1965): half-spaces cut t points of R^d in at most 2 (C(t-1, 0) + ... + C(t-1, d)) ways."""
    return 2 * sum(math.comb(points - 1, i) for i in range(width + 1))


def _cuts(rectangles: list[csr_array]) -> Bound:
    """Each support cuts any t keys by a half-space, and likewise each key cuts any t rows.

    (Rows are then points (q_i, tau_i) of R^(d+1), and key j is the half-space through the origin with normal (k_j, -1),
    for which the count is the same.) More different cuts than Cover allows at width d prove that d is too small. Only
    the keys and rows with most entries are tried.
    """
    width, sentence = 1, "The cuts of the fullest keys and rows are possible in width 1."
    for matrix in [m for rectangle in rectangles for m in (rectangle, rectangle.T.tocsr())]:
        fullest = np.argsort(-np.bincount(matrix.indices, minlength=matrix.shape[1]), kind="stable")[: POINTS[-1]]
        dense = np.asarray(matrix[:, fullest].toarray() > 0)
        for points in (p for p in POINTS if p <= len(fullest)):
            count = len(np.unique(dense[:, :points] @ 2 ** np.arange(points)))
            while count > dichotomies(points, width):
                width += 1
                sentence = f"{points} keys (or rows) are cut in {count} ways; width {width - 1} allows fewer."
    return Bound("cuts", width, True, sentence, "T. Cover, IEEE Trans. EC-14 (1965) 326-334")


def _signs(rectangles: list[csr_array]) -> Bound:
    """[s_ij - tau_i] has rank d + 1 and the signs of the pattern, so d >= sign rank - 1 (see heads/signs.py)."""
    largest = sorted(rectangles, key=lambda r: r.shape[0] * r.shape[1])[-LARGEST:]
    rank = max((sign_rank(rectangle) for rectangle in largest), default=SignRank(1.0, True))
    width = max(math.ceil(rank.least - 1e-6) - 1, 1)
    statement = f"The support's sign matrix has sign rank at least {rank.least:.2f}, and thresholds cost one."
    if not rank.proved:
        statement += " (By an estimate of a norm: no proof.)"
    proves = rank.proved or width == 1
    return Bound("signs", width, proves, statement, "J. Forster, JCSS 65 (2002) 612-625; arXiv:1503.07648")


def _ratios(pattern: Pattern, accuracy: Accuracy) -> Bound:
    """Rows with the same support S prescribe a matrix of log weights, and a head of width d can only give rank d.

    Let R rows share S, and C be their ln A with row means removed. The logits on S, row means removed, are Q (K_S
    centred)^T, which has rank d at most. Row by row they differ from C by numbers of range at most w = ln(1 + e1)
    before centring, so by a vector of squared length at most |S| w^2 / 4 after it (Popoviciu). By Eckart and Young, the
    squares of the singular values of C beyond the d-th sum to at most R |S| w^2 / 4. Only the ratio error enters, so
    (*) is not needed.
    """
    shared: dict[bytes, list[int]] = {}
    for row in np.flatnonzero(pattern.counts > 1):
        key = pattern.columns[pattern.starts[row] : pattern.starts[row + 1]].tobytes()
        shared.setdefault(key, []).append(int(row))
    width, rows_used = 1, 0
    for rows in (r for r in shared.values() if len(r) > 1):
        log = np.log([pattern.weights[pattern.starts[row] : pattern.starts[row + 1]] for row in rows])
        values = np.linalg.svd(log - log.mean(axis=1, keepdims=True), compute_uv=False) ** 2
        beyond = np.append(values[::-1].cumsum()[::-1], 0.0)  # beyond[d]: sum of the squares after the d-th
        allowed = log.size * math.log1p(accuracy.ratio_error) ** 2 / 4
        needed = int(np.argmax(beyond <= allowed * (1 + 1e-9)))
        if needed > width:
            width, rows_used = needed, len(rows)
    statement = (
        f"{rows_used} rows share one support, and their log weights are not within the ratio error of rank {width - 1}."
        if rows_used
        else "No rows share a support with weights that need more than one coordinate."
    )
    return Bound("ratios", width, True, statement, "C. Eckart, G. Young, Psychometrika 1 (1936) 211-218")


def _cycle(pattern: Pattern, separated: Bool[np.ndarray, " row"]) -> Bound:
    """A long cycle and one row that shares no key with it need width 3.

    Rows with two keys are edges between keys. Suppose that they contain a cycle C of at least 5 keys, that some row
    has a support S that shares no key with C, that all these rows are separated, and that the width is 2. Each support
    is then cut off from all other keys by a line. Let V be the corners of the convex hull of all keys.

    1. A half-plane that holds a key holds a corner. So each support has a corner in it, and of the two keys of an edge
       at least one is a corner: of m keys of C at least m / 2, so at least 3, are corners.
    2. Corners in a half-plane are neighbours along the hull. So an edge of two corners joins neighbours.
    3. A key x of C that is no corner and shares an edge with the corner a lies in a half-plane with a alone of V, so
       outside the hull of V without a: in the ear of a, the triangle of a and its neighbours without its base. On C it
       shares edges with two corners a != a', so it lies in both ears. If a and a' were not neighbours, the ear of a'
       would have three corners other than a, so it would lie in the hull of V without a, which the ear of a does not
       meet. So a and a' are neighbours.
    4. By 2 and 3 the corners on C, in the order of C, are each the neighbour of the next. There are at least 3, each is
       met once, and the walk closes: it runs round the whole hull, and every corner is on C.
    5. By 1 the support S has a corner in it, which is on C. Contradiction.

    (Two keys at one point are not cut apart, and each key of C has a partner that the other lacks, so points differ.)
    The union of two random permutations nearly always has such a cycle and row; `constructions.paraboloid` has width 3
    for it. One cycle of all keys fits on a circle, width 2. The proof does not cover causal masks.
    """
    needs = not pattern.causal and _has_cycle_and_row(pattern, separated)
    statement = (
        "In a plane, a cycle of five keys or more takes up the whole hull, and another row shares no key with it."
        if needs
        else "No cycle of pairs with a row that shares no key with it was found (causal patterns are not searched)."
    )
    return Bound("cycle", 3 if needs else 1, True, statement, "convex position in the plane; this software")


def _has_cycle_and_row(pattern: Pattern, separated: Bool[np.ndarray, " row"]) -> bool:
    if not separated.any():
        return False
    rows = pattern.part(np.flatnonzero(separated), np.arange(pattern.n_keys))  # the proof only covers separated rows
    for chain in chains(rows) or ():
        if chain.closed and len(chain) >= SHORTEST_CYCLE:
            on_cycle = np.zeros(pattern.n_keys, dtype=bool)
            on_cycle[list(chain.keys)] = True
            if not np.logical_or.reduceat(on_cycle[rows.columns], rows.starts[:-1]).all():
                return True
    return False


def _radon(keys: int, k: int, accuracy: Accuracy, universal: bool) -> Bound:
    """Radon: any d + 2 points of R^d fall into two parts whose hulls meet, so no half-space cuts out the smaller part.

    With d + 2 <= min(2k + 1, keys) points that part has at most k keys: it is a support that no query can separate,
    although (*) requires that for equal weights. So keys that serve all supports of up to k entries need width min(2k,
    keys - 1).
    """
    while k > 1 and not _separates(1 / k, accuracy):
        k -= 1
    width = max(min(2 * k, keys - 1), 1) if k and _separates(1 / k, accuracy) else 1
    statement = f"Keys that serve every support of up to {k} of {keys} keys need width {width}."
    if not universal:
        statement += " One pattern alone may need less."
    return Bound("universal", width, universal, statement, "J. Radon, Math. Ann. 83 (1921) 113-115")


def _log_supports(visible: Int[np.ndarray, " row"], counts: Int[np.ndarray, " row"]) -> float:
    """Return ln prod_i C(visible_i, counts_i). If all rows have one size, as usual, scipy is not imported."""
    if rows := len(visible):
        v, c = int(visible[0]), int(counts[0])
        if (visible == v).all() and (counts == c).all():
            return rows * (math.lgamma(v + 1) - math.lgamma(c + 1) - math.lgamma(v - c + 1))
    from scipy.special import gammaln

    return float((gammaln(visible + 1) - gammaln(counts + 1) - gammaln(visible - counts + 1)).sum())


def _typical(visible: Int[np.ndarray, " row"], counts: Int[np.ndarray, " row"], n_keys: int) -> Bound:
    """Warren: P polynomials of degree D in V >= 1 variables have at most (4 e D P / V)^V sign patterns, P >= V.

    For n queries and m keys, the numbers q_i . k_j - tau_i are polynomials of degree 2 in V = (n + m) d + n variables,
    and P is the number of visible entries. There are prod_i C(visible_i, counts_i) supports of the given sizes. While
    (8 e P / V)^V is below half of that number, fewer than half of all patterns with these row sizes have a head of
    width d. For n = m the bound is about (k / 2) ln(n / k) / ln(4 e n / d).
    """
    rows, entries = len(visible), int(visible.sum())
    wanted = _log_supports(visible, counts) - math.log(2)
    width = 1
    while rows:
        variables = (rows + n_keys) * width + rows
        if variables >= entries or variables * math.log(8 * math.e * entries / variables) >= wanted:
            break
        width += 1
    statement = f"More than half of all patterns with rows of this size need width {width} (typical, not this one)."
    return Bound("typical", width, False, statement, "H. E. Warren, Trans. AMS 133 (1968) 167-178")
