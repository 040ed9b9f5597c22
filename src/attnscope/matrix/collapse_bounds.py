"""Bounds on how different tokens can still be after one attention call.

Patterns are given by their products x -> A x and y -> A^T y only (`Product`), on tensors [batch head row column].

SA(X) = sum_h P_h X W_h + 1 b^T, P_h = softmax(s X W_QK,h X^T + ...), s the scale. diam(X) = max_ij |x_i - x_j|_2,
tau(P) half the largest l1 distance between two rows of P. Norms without a name are spectral.

(a) diam(SA(X)) <= sum_h tau(P_h) ||W_h|| diam(X).
    Two rows p, q of P share the mass sum_j min(p_j, q_j) = 1 - tau. The rest of each is an average of rows of X with
    mass tau, so |p X - q X| <= tau diam(X); W_h stretches by at most ||W_h||; heads add; the bias cancels.
(b) tau(P) <= tanh(D/4), D = max over i, i', j, j' of (s_ij - s_ij') - (s_i'j - s_i'j') (Birkhoff 1957, Hopf), and
    D = s (x_i - x_i') W_QK (x_j - x_j')^T <= s ||W_QK|| diam(X)^2: terms of i or j alone cancel, biases too.
(c) diam(SA(X)) <= c diam(X)^3 with c = sum_h s ||W_QK,h|| ||W_h|| / 4, from (a), (b) and tanh x <= x: no condition.
(d) with a skip, diam(X) - k diam(N) <= diam(X + SA(N)) <= diam(X) + k diam(N), k = sum_h tau(P_h) ||W_h|| and N the
    input of attention (X itself, or a norm of it): a triangle inequality on the two tokens farthest apart. Without
    norms and with k < 1 a block with a skip cannot collapse its input.

The paper's own bound (arXiv:2103.03404, Theorem 2.2 for one block, R = res(X), ||.||_{1,inf} the composite norm):

    ||res(SA(X))||_{1,inf} <= (4 gamma beta H s) ||R||_{1,inf}^3,   beta = max_h ||W_QK,h||_1 ||W_h||_{1,inf},

if every row of E_h = s R W_QK,h R^T spreads by at most 1.256; gamma = sqrt(sum_i D_ii / max_i D_ii) <= sqrt(n), D_ii
the spread of row i. It is about the residual around the best token; residuals around the mean can be larger by a factor
of up to 2 (1 - 1/n), far below the slack of the theorem.

(b), (c) and the paper's bound need logits that are a plain product of tokens: no rotation, no mask, no position bias.

End to end (Theorem 2.3, Corollary 3.2): a step r -> f r^3 taken L times gives f^((3^L - 1)/2) r^(3^L). An MLP behind
every attention, x -> phi(x W_1) W_2, multiplies f by its Lipschitz constant: |phi'| ||W_1|| ||W_2|| in the spectral
norm for diameters, and in ||.||_{1,inf} for the paper's residual, since ||.||_{1,inf} is submultiplicative too and an
elementwise function stretches no entry of X - 1 x^T by more than |phi'|. Such numbers leave the range of floats at
once: all of them are logarithms to base 10.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import inf, log10

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.matrix.residual import composite_norm, largest_column_sum, residual_about_mean
from attnscope.matrix.similarity import diameter
from attnscope.matrix.spectrum import Product, incoherent_columns, leading_singular_values, product_norm

# Results are exact up to 56 keys, and up to rounding if singular values are well separated. On random softmax patterns,
# which have no gap below the first value, the second was too small by at most 3e-8 at 256 tokens, 0.02% at 1024 (6
# draws each) and 0.2% at 2048 (2 draws); 8 steps left 0.2%, 1.2% and 1.1%. Values are never too large, so a contraction
# may be understated.
BLOCK_COLUMNS = 4
STEPS = 14
_DOBRUSHIN_ROWS = 64
SPREAD_LIMIT = 1.256

Tokens = Float[Tensor, "batch token width"]
Patterns = Float[Tensor, "batch head query key"]
HeadWeights = Float[Tensor, "head width dim"]
QueryMask = Bool[Tensor, "batch query"]
KeyMask = Bool[Tensor, "batch key"]


def dobrushin(pattern: Float[Tensor, "*batch query key"]) -> Float[Tensor, "*batch"]:
    """Return tau(P), half the largest l1 distance of two rows: 0 if all rows are equal, 1 if two are disjoint.

    diam(P X) <= tau(P) diam(X) in every norm, by (a).
    """
    rows = pattern.shape[-2]
    blocks = [
        torch.cdist(pattern[..., i : i + _DOBRUSHIN_ROWS, :], pattern, p=1.0).amax(dim=(-2, -1))
        for i in range(0, rows, _DOBRUSHIN_ROWS)
    ]
    return torch.stack(blocks).amax(dim=0) / 2.0


def pattern_singular_values(
    apply: Product,
    apply_transposed: Product,
    *,
    query_mask: QueryMask,
    key_mask: KeyMask,
    heads: int,
    dtype: torch.dtype = torch.float32,
    count: int = 2,
) -> Float[Tensor, "batch head count"]:
    """Return the largest singular values of every head's pattern among real queries and keys (arXiv:2410.07799)."""
    keep_query, keep_key = _keep(query_mask), _keep(key_mask)
    return leading_singular_values(
        lambda x: keep_query(apply(keep_key(x))),
        lambda y: keep_key(apply_transposed(y)),
        _start(key_mask, heads, dtype),
        count=count,
        steps=STEPS,
    )


def centred_contraction(
    apply: Product,
    apply_transposed: Product,
    *,
    query_mask: QueryMask,
    key_mask: KeyMask,
    heads: int,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "batch head"]:
    """Return the factor sqrt(lambda) in d_M(A X) <= sqrt(lambda) d_M(X) (arXiv:2202.08625).

    With C = I - ee^T, e = 1/sqrt(n), the distance to the one-token subspace is d_M(X) = ||C X||_F. Rows of A sum to
    one, so A e = e and C A = C A C: hence C A X = (C A)(C X) and d_M(A X) <= ||C A||_2 d_M(X), where ||C A||_2^2 is the
    largest eigenvalue lambda of A^T C A. Computed as ||C A C||_2, which is the same number, and remains the contraction
    of centred tokens where a learned sink makes rows sum to less than one. Causal patterns may have a factor above 1.
    """
    centre_query, centre_key = _centre(query_mask), _centre(key_mask)
    values = leading_singular_values(
        lambda x: centre_query(apply(centre_key(x))),
        lambda y: centre_key(apply_transposed(y)),
        centre_key(_start(key_mask, heads, dtype)),
        count=1,
        steps=STEPS,
    )
    return values[..., 0]


def _start(key_mask: KeyMask, heads: int, dtype: torch.dtype) -> Float[Tensor, "batch head key block"]:
    """Return start vectors that padding does not change: their rows are numbered from the first real key."""
    columns = incoherent_columns(key_mask.shape[-1], BLOCK_COLUMNS).to(key_mask.device, dtype)
    columns[:, 0] = 1.0  # A 1 = 1: the constant vector is nearly the first singular vector
    number = (key_mask.cumsum(dim=-1) - 1).clamp_min(0)
    rows = columns[number] * key_mask[..., None]
    return rows[:, None].expand(-1, heads, -1, -1)


def _keep(mask: Bool[Tensor, "batch row"]) -> Callable[[Tensor], Tensor]:
    if bool(mask.all()):
        return lambda rows: rows
    return lambda rows: rows.masked_fill(~mask[:, None, :, None], 0.0)


def _centre(mask: Bool[Tensor, "batch row"]) -> Callable[[Tensor], Tensor]:
    keep, count = _keep(mask), mask.sum(dim=-1).clamp_min(1)[:, None, None, None]

    def centre(rows: Tensor) -> Tensor:
        kept = keep(rows)
        return keep(kept - kept.sum(dim=-2, keepdim=True) / count)

    return centre


@dataclass(frozen=True)
class HeadNorms:
    """The norms of a block's weights that the bounds need: spectral norms of every head, and the paper's beta."""

    query_key: Float[Tensor, " head"]
    mixing: Float[Tensor, " head"]  # ||W_h||, W_h = W_V,h W_O,h
    beta: float

    @property
    def heads(self) -> int:
        return len(self.mixing)


def head_norms(
    query: HeadWeights,
    key: HeadWeights,
    value: Float[Tensor, "head width value_dim"],
    output: Float[Tensor, "head value_dim width"],
) -> HeadNorms:
    """Compute the norms in float64; width x width products exist for one head at a time."""
    query, key, value, output = (t.double() for t in (query, key, value, output))
    beta = max(
        float(largest_column_sum(q @ k.T) * composite_norm(v @ o))
        for q, k, v, o in zip(query, key, value, output, strict=True)
    )
    return HeadNorms(product_norm(query, key.mT), product_norm(value, output), beta)


def mixing_strength(patterns: Patterns, norms: HeadNorms) -> Float[Tensor, " batch"]:
    """Return k of the bounds (a) and (d): sum_h tau(P_h) ||W_h||."""
    strength: Tensor = dobrushin(patterns.double()) @ norms.mixing
    return strength


def birkhoff_bound(tokens: Tokens, norms: HeadNorms, scale: float) -> Float[Tensor, "batch head"]:
    """Return bound (b): a bound on tau of every head that needs no pattern."""
    return torch.tanh(scale * norms.query_key * diameter(tokens)[:, None] ** 2 / 4)


def cubic_constant(norms: HeadNorms, scale: float) -> float:
    """Return the constant c of bound (c) in the module's docstring."""
    return float(scale * (norms.query_key * norms.mixing).sum() / 4)


@dataclass(frozen=True)
class PaperBound:
    """The bound of Theorem 2.2 for one block and every sequence: residual <= factor * before^3 if spread <= 1.256."""

    factor: Float[Tensor, " batch"]  # 4 gamma beta H s
    before: Float[Tensor, " batch"]  # ||R||_{1,inf}
    spread: Float[Tensor, " batch"]

    @property
    def residual(self) -> Float[Tensor, " batch"]:
        return self.factor * self.before**3


def paper_bound(tokens: Tokens, query: HeadWeights, key: HeadWeights, norms: HeadNorms, scale: float) -> PaperBound:
    residual = residual_about_mean(tokens).double()
    # E_h = s (R W_Q)(R W_K)^T, head by head
    left = torch.einsum("btw,hwd->bhtd", residual, query.double())
    right = torch.einsum("btw,hwd->bhtd", residual, key.double())
    logits = scale * left @ right.mT
    spread = logits.amax(-1) - logits.amin(-1)  # D_ii of every head
    largest = spread.amax(-1)
    gamma = (spread.sum(-1) / largest.clamp_min(torch.finfo(spread.dtype).tiny)).sqrt()
    factor = 4 * gamma.amax(-1) * norms.beta * norms.heads * scale
    return PaperBound(factor, composite_norm(residual), largest.amax(-1))


def stacked(factor: float, before: float, layers: int) -> list[float]:
    """Return log10 of f^((3^l - 1)/2) r^(3^l) for l = 0..layers: l cubic steps r -> f r^3."""
    return chained([factor] * layers, before)


def chained(factors: list[float], before: float) -> list[float]:
    """Return log10 after each of the steps r -> f_l r^3, from r = `before`; -inf for zero."""
    values = [_log10(before)]
    for factor in factors:
        values.append(_log10(factor) + 3 * values[-1])
    return values


def _log10(value: float) -> float:
    return log10(value) if value > 0 else -inf


def collapse_order(values: list[float], floor: float) -> tuple[float, int]:
    """Fit p in r_{l+1} ~ r_l^p over consecutive values above the floor; return also the number of pairs."""
    return power([(a, b) for a, b in pairwise(values) if floor < a < 1 and b > floor])


def power(pairs: list[tuple[float, float]]) -> tuple[float, int]:
    """Fit p in b ~ a^p by least squares on logarithms; return also the number of pairs. NaN if there are too few."""
    known = [(a, b) for a, b in pairs if a > 0 and b > 0]
    if len(known) < 2:
        return float("nan"), len(known)
    x, y = torch.tensor(known, dtype=torch.float64).log().unbind(1)
    centred = x - x.mean()
    if not float(centred.square().sum()) > 1e-12:
        return float("nan"), len(known)
    return float((centred * y).sum() / centred.square().sum()), len(known)
