"""The theorem of arXiv:2106.03764 in numbers: target logits, and Gaussian projections.

Notation: row i of the pattern has support S_i, z_i zeros that its query can see, and entries A_ij; e1 is the ratio
error, e2 the largest zero over the smallest non-zero of a row, delta = ln(1 + e1) / 2.

From leak to e2. The theorem bounds e2, a certificate bounds the leak (share of a row that falls on its zeros). Each
of the z_i zeros weighs at most e2 times the smallest of |S_i| non-zeros, hence

    leak / (1 - leak)  =  (mass on zeros) / (mass on the support)  <=  z_i e2 / |S_i|,

so e2 = min_i |S_i| / z_i * leak / (1 - leak) suffices. (Conversely, a head of that leak may have a larger e2: only the
sum over the zeros is bounded.)

Target logits. B_ij = ln(A_ij / a_i) + ln(1 / e2) + 2 delta on the support, with a_i the smallest entry of row i; 0
elsewhere. If every logit is within delta of B, ratios inside a support are wrong by at most e^(2 delta) = 1 + e1, and a
zero over a non-zero is at most e^delta / e^(ln(1/e2) + 2 delta - delta) = e2. Both are statements about ratios of two
entries of one row, so hiding keys with a causal mask and renormalising changes neither.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from attnscope.core.errors import RefusalError
from attnscope.core.progress import Advance
from attnscope.heads.accuracy import Accuracy, Factors, KeyArray, QueryArray
from attnscope.heads.certificate import certify
from attnscope.heads.facts import Certificate
from attnscope.heads.head import Head
from attnscope.heads.pattern import Pattern
from attnscope.heads.rounding import certified
from attnscope.heads.solvers.theorem import Theorem

if TYPE_CHECKING:
    from scipy.sparse import csr_array

DRAWS = 10  # at the theorem's width ten failures in a row have probability below 1/1000
SHARPER = (1, 2, 4, 8, 16)
LARGEST_HEAD = 2**29  # numbers in queries and keys together: 4 GB in float64

Pair = tuple[QueryArray, KeyArray]
Projection = Float[np.ndarray, "rank columns"]


@dataclass(frozen=True, eq=False)
class Target:
    """The logits that a projection approximates, with e2 and beta of the theorem."""

    logits: csr_array
    zero_ratio: float
    largest: float


def row_zero_ratios(pattern: Pattern, leak: float) -> Float[np.ndarray, " row"]:
    """Return, for every row, the e2 that keeps its leak within `leak`: at most 1, and 1 for a row without zeros."""
    zeros = np.maximum(pattern.visible - pattern.counts, 1)
    enough = np.minimum(pattern.counts / zeros * leak / (1 - leak), 1.0)
    return np.where(pattern.visible > pattern.counts, enough, 1.0)


def target(pattern: Pattern, accuracy: Accuracy) -> Target:
    """Return the target logits B of the theorem, for the smallest e2 of all rows; `largest` is beta, which bounds B."""
    zero_ratio = float(row_zero_ratios(pattern, accuracy.leak).min())
    lowest = np.minimum.reduceat(pattern.weights, pattern.starts[:-1])
    logits = pattern.sparse()
    logits.data = (
        np.log(pattern.weights / lowest[pattern.rows]) - math.log(zero_ratio) + math.log1p(accuracy.ratio_error)
    )
    return Target(logits, zero_ratio, float(logits.data.max()))


def gaussian(rank: int, width: int, rng: np.random.Generator) -> Projection:
    """Draw G with entries N(0, 1/width), up to a rotation of its columns, which changes no product G G^T.

    Beyond width = rank the rows of G span `rank` dimensions only, and G = [L 0] R with R a rotation and L the
    Bartlett factor of a Wishart matrix: lower triangular, N(0, 1) below the diagonal, chi with width - i degrees of
    freedom on it. So a projection to a width of millions, as the theorem asks for, is drawn as an array of rank x
    rank.
    """
    if width <= rank:
        return rng.standard_normal((rank, width)) / math.sqrt(width)
    lower = np.tril(rng.standard_normal((rank, rank)), -1)
    np.fill_diagonal(lower, np.sqrt(rng.chisquare(width - np.arange(rank))))
    return np.asarray(lower / math.sqrt(width))


def as_drawn(pair: Pair, pattern: Pattern, accuracy: Accuracy) -> Certificate:
    """Certify a draw in float64 before its ratios are corrected, as in the theorem."""
    import torch

    queries, keys = pair
    head = Head(torch.from_numpy(queries * queries.shape[1] ** 0.5), torch.from_numpy(keys), pattern.causal, "as drawn")
    return certify(head, pattern, accuracy)


def redraw(
    project: Callable[[Projection], Pair],
    rank: int,
    pattern: Pattern,
    width: int,
    accuracy: Accuracy,
    rng: np.random.Generator,
    advance: Advance,
) -> tuple[Factors, dict[str, Any]]:
    """Draw until the finished head is certified, at most `DRAWS` times; else return the draw with fewest failing rows.

    Finished heads have exact ratios whatever the noise, so queries may be longer than the theorem's: s times the target
    asks for zeros of e2^s. Below the theorem's width only this makes a draw pass: noise of a share x of the margin
    leaves a margin of (1 - x) s ln(1/e2).
    """
    if width < 1:
        raise RefusalError("A head needs a width of at least 1: ask for more.")
    size = pattern.n + pattern.n_keys
    if size * width > LARGEST_HEAD:
        raise RefusalError(
            f"A head of width {width} for {pattern.n} tokens takes {size * width * 8 / 2**30:.0f} GB: ask for a width "
            f"of at most {LARGEST_HEAD // size}."
        )
    best: tuple[tuple[int, float], int, Pair] | None = None
    draws, passed = 0, False
    while draws < DRAWS and not passed:
        draws += 1
        queries, keys = project(gaussian(rank, width, rng))
        for sharper in SHARPER:
            finished = certified(Factors(sharper * queries, keys), pattern, accuracy, "draw").certificate
            passed = finished.reached
            quality = (finished.failing, finished.leak)
            if best is None or quality < best[0]:
                best = (quality, sharper, (queries, keys))
            if passed:
                break
        advance("drawing projections", draws, DRAWS)
    assert best is not None
    _, sharper, (queries, keys) = best
    raw = as_drawn((queries, keys), pattern, accuracy)
    missing = ((0, 0), (0, width - queries.shape[1]))  # the columns that `gaussian` leaves out, all zero
    facts = {
        "draws": draws,
        "passed": passed,
        "sharper": sharper,
        "ratio_error_as_drawn": raw.ratio_error,
        "leak_as_drawn": raw.leak,
        "zero_ratio_as_drawn": raw.zero_ratio,
        "passed_as_drawn": raw.reached,
    }
    return Factors(np.pad(sharper * queries, missing), np.pad(keys, missing)), facts


def theorem_notes(theorem: Theorem, wanted: Target, pattern: Pattern, accuracy: Accuracy) -> dict[str, Any]:
    """Return the theorem's numbers for this pattern, for the notes of a head."""
    beyond = theorem.width > pattern.n_keys
    return {
        "delta": math.log1p(accuracy.ratio_error) / 2,
        "beta": wanted.largest,
        "zero_ratio": wanted.zero_ratio,
        "theorem_width": theorem.width,
        "theorem_success_at_least": theorem.success_at_least,
        "theorem_draws_at_most": theorem.draws_at_most,
        "theorem_beyond_n": beyond,
        "theorem_says": (
            f"The theorem's width {theorem.width} is beyond the {pattern.n_keys} keys: one coordinate per key "
            "realises any pattern at width n."
            if beyond
            else f"At width {theorem.width} a draw succeeds with probability at least 1/2."
        ),
    }
