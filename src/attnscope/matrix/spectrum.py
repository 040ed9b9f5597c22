"""Spectra without the matrix: singular values from products alone, eigenvalues of W_Q W_K^T from its factors.

No n x n attention pattern and no d x d weight product is ever formed.

SwiGLU without its SiLU is a quadratic form of the token, one for every channel that it writes (arXiv:2603.05498):

    F(h)_k = sum_i D_ki (g_i . h) (u_i . h) = h^T U_k h = h^T S_k h
    U_k = sum_i D_ki g_i u_i^T,  S_k = (U_k + U_k^T)/2

with g_i, u_i the rows of W_gate and W_up, and D = W_down. A channel whose S_k is far larger than the others', with one
eigenpair that holds nearly all of it, is amplified quadratically for tokens along that eigenvector, which is where
massive activations come from. All norms at once (derived):

    ||U_k||_F^2 = tr(U_k U_k^T) = sum_ij D_ki D_kj (g_i . g_j)(u_i . u_j) = d_k^T (G G^T * U U^T) d_k
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.matrix.visibility import accumulation_dtype

Product = Callable[[Tensor], Tensor]
Gate = Float[Tensor, "hidden width"]

_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53)


def incoherent_columns(rows: int, columns: int) -> Float[Tensor, "rows columns"]:
    """Return deterministic start vectors that behave like random ones, made of quadratic phases.

    Entry (r, c) is cos(2 pi frac(r^2 sqrt(p_c)) + c), with p_c the c-th prime and r = 1, 2, ... By Weyl's theorem
    r^2 sqrt(p) is equidistributed modulo 1, so no structured singular vector is orthogonal to all of them. Row r does
    not depend on the number of rows, so padding cannot change where an iteration starts.
    """
    square = torch.arange(1, rows + 1, dtype=torch.float64)[:, None].square()
    root = torch.tensor([math.sqrt(p) for p in _PRIMES[:columns]], dtype=torch.float64)
    phase = torch.arange(columns, dtype=torch.float64)
    return torch.cos(2.0 * math.pi * torch.frac(square * root) + phase)


def leading_singular_values(
    apply: Product, apply_transposed: Product, start: Float[Tensor, "*batch row block"], count: int = 1, steps: int = 8
) -> Float[Tensor, "*batch count"]:
    """Return the `count` largest singular values of M, given as x -> M x and y -> M^T y, largest first.

    This is block power iteration that keeps all earlier blocks (block Krylov): with V the start block, an orthonormal
    basis Q of span[V, (M^T M) V, ..., (M^T M)^(steps-1) V] is built, and the singular values of M Q are returned. They
    never exceed the true ones (Q has orthonormal columns), and fall short of them by a factor 1 - O(log^2(n) / steps^2)
    whatever the spectrum, exponentially little where there is a gap (Musco and Musco, arXiv:1504.05477, theorem 1). A
    value of multiplicity m needs a block of m columns.
    """
    basis = orthonormal(start)
    newest = basis
    for _ in range(steps - 1):
        if basis.shape[-1] >= basis.shape[-2]:
            break  # the basis is the whole space, and the answer exact
        grown = apply_transposed(apply(newest))
        for _ in range(2):  # once is not enough where M^T M maps the block nearly into the span of the basis
            grown = grown - basis @ (basis.mT @ grown)
        newest = orthonormal(grown)
        # A block that was already spanned leaves only rounding noise, which overlaps with the basis: the Householder
        # factor of the whole is orthonormal whatever its columns are.
        basis = orthonormal(torch.cat([basis, newest], dim=-1))
        newest = basis[..., -newest.shape[-1] :]
    image = apply(basis)
    sick = ~torch.isfinite(image).all(dim=-1).all(dim=-1)
    values = torch.linalg.svdvals(image.masked_fill(sick[..., None, None], 0.0))
    values = values.masked_fill(sick[..., None], torch.nan)
    missing = count - values.shape[-1]
    return torch.nn.functional.pad(values, (0, missing)) if missing > 0 else values[..., :count]


def orthonormal(columns: Float[Tensor, "*batch row column"]) -> Float[Tensor, "*batch row kept"]:
    """Return the orthonormal factor of a QR decomposition (Householder: orthonormal even for dependent columns)."""
    basis: Tensor = torch.linalg.qr(columns, mode="reduced").Q
    return basis


def product_norm(
    left: Float[Tensor, "*batch outer inner"], right: Float[Tensor, "*batch inner other"]
) -> Float[Tensor, "*batch"]:
    """Return ||L R||_2 without forming L R; NaN where L or R is not finite.

    L = Q_1 R_1 and R^T = Q_2 R_2 with orthonormal Q_1, Q_2 give L R = Q_1 (R_1 R_2^T) Q_2^T, and the outer factors
    change no singular value. Only R_1 R_2^T, a matrix of the inner size, is decomposed.
    """
    dtype = accumulation_dtype(left)
    inner_left = torch.linalg.qr(left.to(dtype), mode="r").R
    inner_right = torch.linalg.qr(right.to(dtype).mT, mode="r").R
    core = inner_left @ inner_right.mT
    sick = ~torch.isfinite(core).all(dim=-1).all(dim=-1)
    values: Tensor = torch.linalg.svdvals(core.masked_fill(sick[..., None, None], 0.0))
    return values.amax(dim=-1).masked_fill(sick, torch.nan)


def qk_spectrum(
    query_weight: Float[Tensor, "*batch width dim"], key_weight: Float[Tensor, "*batch width dim"]
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    """Return mean, variance and eta of the eigenvalues of W = W_Q W_K^T, from dim x dim matrices (arXiv:2402.02098).

    The trace is cyclic. With S = W_K^T W_Q (dim x dim) and d the width,

        mean     = (1/d) sum_i lambda_i            = tr(W)/d            = tr(S)/d
        variance = (1/d) sum_i lambda_i^2 - mean^2 = tr(W^2)/d - mean^2 = tr(S^2)/d - mean^2
        ||W||_F^2 = tr(W W^T) = tr((W_K^T W_K)(W_Q^T W_Q))
        eta      = tr(W) / (sqrt(d) ||W||_F)

    Cauchy-Schwarz, tr(W) = <W, I> <= ||W||_F sqrt(d), gives |eta| <= 1 with equality only for multiples of I; a head of
    rank dim reaches at most sqrt(dim/d). W is not symmetric, its eigenvalues come in conjugate pairs, so the variance
    is real but may be negative (a rotation has -1 where mean is 0). The logits' scale is left out.
    """
    width = query_weight.shape[-2]
    query, key = query_weight.double(), key_weight.double()
    small = key.mT @ query
    trace = small.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
    trace_of_square = (small * small.mT).sum(dim=(-2, -1))
    frobenius = ((key.mT @ key) * (query.mT @ query)).sum(dim=(-2, -1)).clamp_min(0.0).sqrt()
    mean = trace / width
    variance = trace_of_square / width - mean.square()
    eta = trace / (math.sqrt(width) * frobenius).clamp_min(torch.finfo(torch.float64).tiny)
    return mean, variance, eta


def without_silu(
    tokens: Float[Tensor, "*token width"], gate: Gate, up: Gate, down: Float[Tensor, "channel hidden"]
) -> Float[Tensor, "*token channel"]:
    """Return SwiGLU without its SiLU, W_down (W_gate h * W_up h)."""
    return ((tokens @ gate.mT) * (tokens @ up.mT)) @ down.mT


def quadratic_form(gate: Gate, up: Gate, row: Float[Tensor, " hidden"]) -> Float[Tensor, "width width"]:
    """Return the quadratic form S_k of the channel whose row of W_down is `row`."""
    form = gate.mT @ (row[:, None] * up)
    return (form + form.mT) / 2


def form_norms(gate: Gate, up: Gate, down: Float[Tensor, "channel hidden"]) -> Float[Tensor, " channel"]:
    """Return ||U_k||_F of every channel, from the two Gram matrices of hidden units; in float64."""
    gate, up, down = gate.double(), up.double(), down.double()
    products = (gate @ gate.mT) * (up @ up.mT)
    return ((down @ products) * down).sum(-1).clamp_min(0.0).sqrt()


def dominance(form: Float[Tensor, "width width"]) -> tuple[float, Float[Tensor, " width"]]:
    """Return |largest eigenvalue| / ||S||_F, between 1/sqrt(width) and 1 (a single eigenpair), and its eigenvector."""
    values, vectors = torch.linalg.eigh(form.double())
    most = int(values.abs().argmax())
    size = float(values.norm())
    return (float(values[most].abs()) / size if size else 0.0), vectors[:, most]
