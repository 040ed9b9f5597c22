"""The head of arXiv:2106.03764: split the target logits by their singular values, and project both halves at random.

Derivation (arXiv:2106.03764, Theorem 1; the numbers are in heads/solvers/projection.py):

1. B holds logits whose softmax has exact ratios on the support and zeros small enough, with delta to spare everywhere.
2. B = U S V^T. The rows x_i of U S^1/2 and y_j of V S^1/2 have <x_i, y_j> = B_ij and
   |x_i|^2 = (U S U^T)_ii <= ||B||_2 <= sqrt(||B||_1 ||B||_inf) <= k beta. This step needs sparse columns.
3. A Gaussian G with entries N(0, 1/d) keeps all n^2 products within t |x| |y| <= delta with probability >= 1/2 once
   d >= 4 ln(8 n^2) / (t^2 - t^3), t = delta / (k beta).
4. X1 = U S^1/2 G are the queries, X2 = V S^1/2 G the keys. The input is X = [X1 X2], and the projections
   W_Q = [I; 0], W_K = [0; I] do not depend on the pattern. Check each draw and draw again if it fails: two draws are
   expected at most. QED

The ratios decide the theorem's width: a logit must be within delta of its target. Every head is finished by a step that
makes its ratios exact, so a *finished* head passes at a far smaller width. `*_as_drawn` in the notes describes the
unfinished head of the theorem.

If B consists of blocks that share no row and no column (permutations, block patterns), each block is decomposed alone,
and together they decompose B.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Int
from scipy.sparse import block_array, csr_array
from scipy.sparse.csgraph import connected_components

from attnscope.core.construction import construction
from attnscope.core.errors import RefusalError
from attnscope.core.progress import Advance, silent
from attnscope.heads.accuracy import Accuracy, Factors
from attnscope.heads.pattern import Pattern
from attnscope.heads.solvers.projection import (
    Pair,
    Projection,
    Target,
    as_drawn,
    gaussian,
    redraw,
    target,
    theorem_notes,
)
from attnscope.heads.solvers.theorem import Theorem, exact_tail_width, theorem_width

LARGEST_BLOCK = 4096  # a dense decomposition of this size takes about a minute; the time grows with the cube

__all__ = ["Drawing", "Theorem", "random_projection", "success_rate", "theorem_for", "theorem_width"]


def theorem_for(pattern: Pattern, accuracy: Accuracy) -> Theorem:
    """Return the theorem's width for the k, spread and e2 of this pattern."""
    k = math.sqrt(pattern.k * pattern.k_columns)
    size = math.ceil(math.sqrt(pattern.n * pattern.n_keys))
    return theorem_width(size, k, pattern.spread, accuracy.ratio_error, target(pattern, accuracy).zero_ratio)


@construction(
    title="Random projection",
    summary="The paper's construction: singular value split of the target logits, random projection, redrawn.",
    citation="arXiv:2106.03764",
    universal=False,
    first_width=lambda pattern: math.ceil(8 * math.log(pattern.n_keys + 1)),
)
def random_projection(
    pattern: Pattern, width: int, accuracy: Accuracy, rng: np.random.Generator, advance: Advance = silent
) -> Factors:
    """Return queries U S^1/2 G and keys V S^1/2 G: the first of at most ten draws whose finished head is certified."""
    wanted = target(pattern, accuracy)
    split = Split(wanted)
    factors, facts = redraw(split.project, split.rank, pattern, width, accuracy, rng, advance)
    theorem = theorem_for(pattern, accuracy)
    notes = {**facts, **theorem_notes(theorem, wanted, pattern, accuracy), "spectral_norm": split.norm}
    exact = exact_tail_width(*split.project(np.eye(split.rank)), math.log1p(accuracy.ratio_error) / 2)
    return Factors(factors.queries, factors.keys, {**notes, "rank": split.rank, "exact_tail_width": exact})


def success_rate(pattern: Pattern, width: int, accuracy: Accuracy, draws: int, rng: np.random.Generator) -> float:
    """Return the share of draws that meet the theorem's two conditions: e1 on the support, e2 for the zeros."""
    drawing = Drawing(pattern, accuracy)
    return sum(drawing.succeeds(width, rng) for _ in range(draws)) / draws


class Drawing:
    """Random draws for one pattern at any width. The slow decomposition is computed once."""

    def __init__(self, pattern: Pattern, accuracy: Accuracy) -> None:
        self.pattern, self.accuracy, self.wanted = pattern, accuracy, target(pattern, accuracy)
        self.split = Split(self.wanted)

    def succeeds(self, width: int, rng: np.random.Generator) -> bool:
        """Return whether a fresh draw meets both conditions."""
        pair = self.split.project(gaussian(self.split.rank, width, rng))
        drawn = as_drawn(pair, self.pattern, self.accuracy)
        return drawn.ratio_error <= self.accuracy.ratio_error and drawn.zero_ratio <= self.wanted.zero_ratio

    def half_succeed(self, width: int, draws: int, rng: np.random.Generator) -> bool:
        """Return whether at least half of the draws succeed; stop drawing once that is decided."""
        good = made = 0
        while 2 * good < draws and 2 * (made - good) <= draws:
            good += self.succeeds(width, rng)
            made += 1
        return 2 * good >= draws


class Split:
    """The singular value decomposition of B, block by block."""

    def __init__(self, wanted: Target) -> None:
        self.shape = wanted.logits.shape
        self.blocks = [_halves(wanted.logits, rows, columns) for rows, columns in _blocks(wanted.logits)]
        self.norm = max(float((left**2).sum(axis=0).max()) for _, left, _, _ in self.blocks)
        self.rank = sum(left.shape[1] for _, left, _, _ in self.blocks)

    def project(self, projection: Projection) -> Pair:
        queries, keys = (np.zeros((size, projection.shape[1])) for size in self.shape)
        first = 0
        for rows, left, columns, right in self.blocks:
            part = projection[first : first + left.shape[1]]
            queries[rows], keys[columns] = left @ part, right @ part
            first += len(part)
        return queries, keys


def _blocks(logits: csr_array) -> list[tuple[Int[np.ndarray, " row"], Int[np.ndarray, " column"]]]:
    """Return the rows and columns of each connected component of the bipartite graph. Unused columns are left out."""
    n = logits.shape[0]
    count, label = connected_components(block_array([[None, logits], [logits.T, None]]), directed=False)
    order = np.argsort(label, kind="stable")
    members = np.split(order, np.searchsorted(label[order], np.arange(1, count)))
    return [(member[member < n], member[member >= n] - n) for member in members if member[0] < n]


def _halves(
    logits: csr_array, rows: Int[np.ndarray, " row"], columns: Int[np.ndarray, " column"]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    if min(len(rows), len(columns)) > LARGEST_BLOCK:
        raise RefusalError(
            f"The pattern has a connected part of {len(rows)} x {len(columns)}, and its singular value decomposition "
            f"stops at {LARGEST_BLOCK}: use random_projection_rows, which needs none."
        )
    block = logits[rows][:, columns].toarray() if len(rows) < logits.shape[0] else logits.toarray()[:, columns]
    left, values, right = np.linalg.svd(block, full_matrices=False)
    return rows, left * np.sqrt(values), columns, right.T * np.sqrt(values)
