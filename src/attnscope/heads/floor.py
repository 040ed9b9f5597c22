"""The logit floor: how long queries and keys must be, whatever the width, and so what precision must bear.

One row. Let s be its logits, S its support with |S| entries A_j, z its visible zeros, w = ln(1 + e1), L the leak. By
Jensen the zeros have ln sum e^s >= ln z + mean(s off S); the leak puts the support ln((1 - L) / L) above that; and
with r_j = s_j - ln A_j, of range w, the support has ln sum_S A_j e^(r_j) <= max r <= mean(s on S) - mean(ln A on S) +
w. Together

    mean(s on S) - mean(s off S)  >=  g  =  ln(z (1 - L) / L) + mean(ln A on S) - w,

which is ln(z (1 - L) / (|S| L)) - w for equal weights.

All rows. Row i of C is (1 / |S_i| on S_i, -1 / z_i on its zeros, 0 where hidden) / g_i, so that q_i . (C K)_i >= 1.
Of R such rows one has |(C K)_i|^2 <= ||C K||_F^2 / R <= ||C||_2^2 m max|k|^2 / R, m the number of keys, hence

    max|q| max|k|  >=  sqrt(R / m) / ||C||_2.

Typical supports of k among n keys: for a random S the squared length of mean(K on S) - mean(K off S) has expectation at
most max|k|^2 n^2 / (k (n - k)(n - 1)) (sampling without replacement), so some support needs

    max|q| max|k|  >=  g sqrt(k (n - k)(n - 1)) / n,     about sqrt(k) ln((n - k) / (k L)).

Norms are those of logits q . k; a head that divides by sqrt(d) has products of norms sqrt(d) times as large.
"""

from __future__ import annotations

import math

import numpy as np

from attnscope.heads.accuracy import Accuracy
from attnscope.heads.signs import proved_norm, spectral_norm
from attnscope.patterns.pattern import Pattern


def logit_floor(pattern: Pattern, accuracy: Accuracy) -> float:
    """What max|q| max|k| cannot go below for this pattern; 0 where no row has a zero to suppress."""
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
    """||C||_2^2 <= ||C||_1 ||C||_inf: the largest sum of a row's sizes is 2 / g, that of a column is added up."""
    sizes = np.where(used, on - off, 0.0)  # 1 / (|S| g) on the support
    zeros = np.bincount(pattern.visible - 1, weights=off, minlength=pattern.n_keys)[::-1].cumsum()[::-1]
    columns = zeros + np.bincount(pattern.columns, weights=(sizes - off)[pattern.rows], minlength=pattern.n_keys)
    rows = sizes * pattern.counts + off * (pattern.visible - pattern.counts)
    return math.sqrt(float(rows.max()) * float(columns.max()))


def typical_logit_floor(n: int, k: int, accuracy: Accuracy) -> float:
    """What max|q| max|k| cannot go below for some support of k of n keys; 0 where there is none to suppress."""
    if k >= n:
        return 0.0
    gap = math.log((n - k) / k * (1 - accuracy.leak) / accuracy.leak) - math.log1p(accuracy.ratio_error)
    return max(gap, 0.0) * math.sqrt(k * (n - k) * (n - 1)) / n
