"""A lower bound on the sign rank of a 0/1 matrix: the least rank of a real matrix positive exactly on its ones.

Forster's theorem, with weights. Let M be R x C with no entry in (-1, 1), and let some matrix of rank r have the same
signs. Forster's lemma moves the factors of that matrix, without changing a sign, to unit vectors x_i, y_j of R^r with
sum_i x_i x_i^T = (R / r) I. For every j then sum_i |<x_i, y_j>| >= sum_i <x_i, y_j>^2 = R / r, so

    C R / r  <=  sum_ij |M_ij| |<x_i, y_j>|  =  sum_ij M_ij <x_i, y_j>  <=  ||M||_2 |X|_F |Y|_F  =  ||M||_2 sqrt(R C),

that is r >= sqrt(R C) / ||M||_2. Plain signs are useless for sparse patterns: the -1s alone have norm near sqrt(R C).
But the ones may carry any weight w >= 1. M = (w + 1) A - J with w + 1 = C / k removes the mean of k-regular rows,
leaves ||M|| = (C / k) sigma_2(A), and gives k sqrt(R / C) / sigma_2: for square regular patterns k over the second
singular value, the bound of arXiv:1503.07648. Other patterns try some weights: each is a valid bound.

All of this needs an upper bound on ||M||_2, which no number of products with M proves: Lanczos may have missed a larger
eigenvalue (its residual says that *some* eigenvalue is near, not that it is the largest). So Lanczos makes a guess, and
a Cholesky factorisation proves it: if mu I - M^T M has one, all eigenvalues of M^T M are below mu. Rounding errors, in
M^T M and in the factorisation, are covered by (R + C + 2) 2^-52 trace(M^T M), and by twice that (S. M. Rump, BIT 46
(2006) 433-452). It costs a dense product, so matrices larger than `PROVED_UP_TO` have no proof.

The logit floor: how long queries and keys must be, whatever the width, and so how large the logits are that the
precision must hold.

One row. Let s be its logits, S its support with |S| entries A_j, z its visible zeros, w = ln(1 + e1), L the leak. By
Jensen the zeros have ln sum e^s >= ln z + mean(s off S); the leak puts the support ln((1 - L) / L) above that; and with
r_j = s_j - ln A_j, of range w, the support has ln sum_S A_j e^(r_j) <= max r <= mean(s on S) - mean(ln A on S) + w.
Together

    mean(s on S) - mean(s off S)  >=  g  =  ln(z (1 - L) / L) + mean(ln A on S) - w,

which is ln(z (1 - L) / (|S| L)) - w for equal weights.

All rows. Row i of C is (1 / |S_i| on S_i, -1 / z_i on its zeros, 0 where hidden) / g_i, so that q_i . (C K)_i >= 1. Of
R such rows one has |(C K)_i|^2 <= ||C K||_F^2 / R <= ||C||_2^2 m max|k|^2 / R, m the number of keys, hence

    max|q| max|k|  >=  sqrt(R / m) / ||C||_2.

Typical supports of k among n keys: for a random S the squared length of mean(K on S) - mean(K off S) has expectation at
most max|k|^2 n^2 / (k (n - k)(n - 1)) (sampling without replacement), so some support needs

    max|q| max|k|  >=  g sqrt(k (n - k)(n - 1)) / n,     about sqrt(k) ln((n - k) / (k L)).

These norms belong to logits q . k; in a head that divides logits by sqrt(d), the product is sqrt(d) times as large.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float

from attnscope.heads.accuracy import Accuracy
from attnscope.heads.pattern import Pattern

if TYPE_CHECKING:
    from scipy.sparse import csr_array

DENSE_UP_TO = 512
PROVED_UP_TO = 2048
MOST_STEPS = 120
CLOSE = 1e-5
ROOM = 1e-5  # the norm to be proved is above the guess by this share of it
WEIGHTS = (0.5, 1.0, 2.0)
Product = Callable[[np.ndarray], np.ndarray]


class SignRank(NamedTuple):
    """A lower bound on the sign rank, and whether it is proved or rests on an estimate of a norm."""

    least: float
    proved: bool


def sign_rank(ones: csr_array) -> SignRank:
    """Return the best bound over a few weights w, at least 1."""
    rows, columns = ones.shape
    mean = ones.sum() / rows
    if mean == 0:
        return SignRank(1.0, True)
    guesses = []
    for weight in WEIGHTS:
        total = max(weight * columns / mean, 2.0)

        def forward(x: np.ndarray, total: float = total) -> np.ndarray:
            return np.asarray(total * (ones @ x) - x.sum(axis=0))

        def backward(y: np.ndarray, total: float = total) -> np.ndarray:
            return np.asarray(total * (ones.T @ y) - y.sum(axis=0))

        guesses.append((spectral_norm(forward, backward, (rows, columns)), forward))
    guess, product = min(guesses, key=lambda pair: pair[0])
    root = math.sqrt(rows * columns)
    if root <= guess:
        return SignRank(1.0, True)
    norm = proved_norm(guess, product, (rows, columns))
    return SignRank(root / guess, False) if norm is None else SignRank(max(1.0, root / norm), True)


def proved_norm(guess: float, forward: Product, shape: tuple[int, int]) -> float | None:
    """Return a proved upper bound on the largest singular value, a little above the guess.

    Return None if the guess is too small or the matrix too large.
    """
    if min(shape) <= DENSE_UP_TO:  # the guess comes from all singular values, to the last digits of float64
        return guess * (1 + 1e-9)
    if max(shape) > PROVED_UP_TO:
        return None
    matrix = forward(np.eye(shape[1]))
    gram = matrix.T @ matrix if shape[1] <= shape[0] else matrix @ matrix.T
    rounding = (shape[0] + shape[1] + 2) * 2.0**-52 * float(np.trace(gram))
    square = (guess * (1 + ROOM)) ** 2 + 3 * rounding
    gram *= -1.0
    gram[np.diag_indices(len(gram))] += square - rounding
    try:
        np.linalg.cholesky(gram)
    except np.linalg.LinAlgError:
        return None
    return math.sqrt(square)


def spectral_norm(forward: Product, backward: Product, shape: tuple[int, int]) -> float:
    """Return the largest singular value: exact for small matrices, else a Lanczos estimate with its residual added.

    (scipy's svds fails if singular values coincide, as for a permutation, because the Krylov space is exhausted after a
    few steps. Here the iteration stops in that case.)
    """
    if min(shape) <= DENSE_UP_TO:
        narrow = shape[1] <= shape[0]
        product, size = (forward, shape[1]) if narrow else (backward, shape[0])
        return float(np.linalg.norm(np.stack([product(unit) for unit in np.eye(size)]), 2))
    from scipy.linalg import eigh_tridiagonal

    basis = np.zeros((MOST_STEPS + 1, shape[1]))
    basis[0] = _start(shape[1])
    diagonal, beside = np.zeros(MOST_STEPS), np.zeros(MOST_STEPS)
    for step in range(MOST_STEPS):
        image, known = backward(forward(basis[step])), basis[: step + 1]
        diagonal[step] = image @ basis[step]
        for _ in range(2):  # make it orthogonal to all earlier vectors: two passes are enough
            image = image - known.T @ (known @ image)
        beside[step] = np.linalg.norm(image)
        ended = bool(beside[step] <= 1e-12 * diagonal[0])
        if ended or step % 10 == 9:
            values, vectors = eigh_tridiagonal(diagonal[: step + 1], beside[:step])
            short = float(beside[step] * abs(vectors[-1, -1]))
            if ended or short <= CLOSE * values[-1]:
                break
        basis[step + 1] = image / beside[step]
    return math.sqrt(float(values[-1]) + short) * (1 + 1e-9)


def _start(size: int) -> Float[np.ndarray, " size"]:
    """Return a fixed unit vector of quadratic phases, which is unlikely to be orthogonal to any eigenvector."""
    phases = np.cos(2 * np.pi * np.mod(np.arange(1, size + 1) ** 2 * math.sqrt(2), 1.0))
    return np.asarray(phases / np.linalg.norm(phases))


def logit_floor(pattern: Pattern, accuracy: Accuracy) -> float:
    """Return a lower bound of max|q| max|k| for this pattern; 0 if no row has a zero to suppress."""
    from scipy.sparse import csr_array

    zeros = pattern.visible - pattern.counts
    mean_log = np.add.reduceat(np.log(pattern.weights), pattern.starts[:-1]) / pattern.counts
    odds = math.log((1 - accuracy.leak) / accuracy.leak) - math.log1p(accuracy.ratio_error)
    gap = np.log(np.maximum(zeros, 1)) + mean_log + odds
    used = (zeros > 0) & (gap > 0)
    if not used.any():
        return 0.0
    off = np.where(used, 1 / np.maximum(zeros, 1), 0.0) / np.where(used, gap, 1.0)
    on = np.where(used, 1 / pattern.counts, 0.0) / np.where(used, gap, 1.0) + off
    lifted = csr_array((on[pattern.rows], pattern.columns, pattern.starts), (pattern.n, pattern.n_keys))

    def forward(x: np.ndarray) -> np.ndarray:
        return np.asarray(lifted @ x - (off * np.cumsum(x, axis=0)[pattern.visible - 1].T).T)

    def backward(y: np.ndarray) -> np.ndarray:
        ends = np.bincount(pattern.visible - 1, weights=off * y, minlength=pattern.n_keys)
        return np.asarray(lifted.T @ y - ends[::-1].cumsum()[::-1])

    shape = pattern.n, pattern.n_keys
    norm = proved_norm(spectral_norm(forward, backward, shape), forward, shape) or _by_sums(pattern, on, off, used)
    return math.sqrt(int(used.sum()) / pattern.n_keys) / norm


def _by_sums(pattern: Pattern, on: np.ndarray, off: np.ndarray, used: np.ndarray) -> float:
    """Return sqrt(||C||_1 ||C||_inf) >= ||C||_2: the largest row sum is 2 / g, the column sums are computed."""
    sizes = np.where(used, on - off, 0.0)  # 1 / (|S| g) on the support
    zeros = np.bincount(pattern.visible - 1, weights=off, minlength=pattern.n_keys)[::-1].cumsum()[::-1]
    columns = zeros + np.bincount(pattern.columns, weights=(sizes - off)[pattern.rows], minlength=pattern.n_keys)
    rows = sizes * pattern.counts + off * (pattern.visible - pattern.counts)
    return math.sqrt(float(rows.max()) * float(columns.max()))


def typical_logit_floor(n: int, k: int, accuracy: Accuracy) -> float:
    """Return a lower bound of max|q| max|k| for some support of k of n keys; 0 if there is no zero to suppress."""
    if k >= n:
        return 0.0
    gap = math.log((n - k) / k * (1 - accuracy.leak) / accuracy.leak) - math.log1p(accuracy.ratio_error)
    return max(gap, 0.0) * math.sqrt(k * (n - k) * (n - 1)) / n
