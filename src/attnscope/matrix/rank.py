"""How many directions a matrix of tokens really uses: stable, effective and numerical rank.

Routes, chosen by cost and accuracy:

- stable rank: the largest singular value by Lanczos, O(n d) a step, and Gram eigenvalues for the few
  sequences that have not converged. Relative error below 1e-4.
- effective rank: eigenvalues of the smaller Gram matrix (n x n or d x d) in float64. Squaring halves the
  digits: singular values below 1e-8 of the largest are lost, where float32 would lose those below 3e-4,
  which are most of them once one activation is massive.
- numerical rank: singular values themselves (svdvals). Its threshold, max(n, d) eps s_1, lies below what a
  Gram matrix can resolve.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnscope.matrix.sequences import WHOLE_BYTES, Sequences, sequences
from attnscope.matrix.spectrum import incoherent_columns

Stream = Float[Tensor, "batch token width"]
Mask = Bool[Tensor, "batch token"]

LANCZOS_STEPS = 5
LANCZOS_TOLERANCE = 1e-4


def singular_values(stream: Stream, token_mask: Mask | None = None) -> Float[Tensor, "batch value"]:
    """All min(n, d) singular values by the smaller Gram matrix in float64, largest first."""
    return torch.cat([_gram_values(some.tokens) for some in sequences(stream, token_mask)])


def stable_rank(stream: Stream, token_mask: Mask | None = None) -> Float[Tensor, "batch"]:
    """||X||_F^2 / ||X||_2^2 (arXiv:2410.07799): 1 for rank one, at most min(n, d); zero for zeros."""
    parts = []
    for some in sequences(stream, token_mask, WHOLE_BYTES):
        frobenius = torch.linalg.vector_norm(some.tokens, dim=(-2, -1))
        largest = _largest_singular_value(some)
        parts.append((frobenius / largest.clamp_min(torch.finfo(largest.dtype).tiny)).square())
    return torch.cat(parts)


def effective_rank(stream: Stream, token_mask: Mask | None = None) -> Float[Tensor, "batch"]:
    """exp of the entropy of p_i = s_i / sum_j s_j (Roy and Vetterli 2007; arXiv:2210.02885); zero for zeros.

    Equals k when k singular values are equal and the others zero, lies between 1 and the rank, ignores scale.
    """
    values = singular_values(stream, token_mask)
    total = values.sum(dim=-1, keepdim=True)
    share = values / total.clamp_min(torch.finfo(values.dtype).tiny)
    rank = torch.special.entr(share).sum(dim=-1).exp()
    return torch.where(total.squeeze(-1) == 0, 0.0, rank)


def numerical_rank(
    stream: Stream, token_mask: Mask | None = None, tolerance: float | None = None
) -> Int[Tensor, "batch"]:
    """How many singular values exceed `tolerance` (default max(n, d) eps) times the largest."""
    relative = max(stream.shape[-2:]) * torch.finfo(stream.dtype).eps if tolerance is None else tolerance
    parts = []
    for some in sequences(stream, token_mask):
        values = torch.linalg.svdvals(some.tokens.double())
        parts.append((values > relative * values[..., :1]).sum(dim=-1))
    return torch.cat(parts)


def _gram_values(tokens: Stream) -> Float[Tensor, "batch value"]:
    wide = tokens if tokens.device.type == "mps" else tokens.double()  # that device has no float64
    gram = wide @ wide.mT if wide.shape[-2] <= wide.shape[-1] else wide.mT @ wide
    sick = ~torch.isfinite(gram).all(dim=-1).all(dim=-1)
    squares = torch.linalg.eigvalsh(gram.masked_fill(sick[:, None, None], 0.0)).flip(-1)
    # What rounding leaves of a zero eigenvalue is up to n eps of the largest, and its root would count as
    # 1e-7 of s_1.
    floor = gram.shape[-1] * torch.finfo(gram.dtype).eps * squares[..., :1]
    values: Tensor = squares.masked_fill(squares <= floor, 0.0).sqrt().masked_fill(sick[:, None], torch.nan)
    return values


def _largest_singular_value(some: Sequences) -> Float[Tensor, "batch"]:
    """||X||_2 by Lanczos on X^T X, and by the Gram matrix for sequences on which that has not converged.

    After k steps X^T X V = V T + beta e_k^T with tridiagonal T. For the largest eigenpair (theta, y) of T
    the residual is r = beta |y_k|, and the eigenvalue is within r^2 / gap of theta (Parlett 1998, theorem
    11.7.1), with the gap taken to the next eigenvalue of T. Sequences are judged one by one, so batch mates
    do not matter.
    """
    tokens = some.tokens
    diagonal, beside = _lanczos(some)
    sick = ~(torch.isfinite(diagonal) & torch.isfinite(beside)).all(dim=-1)
    diagonal, beside = (t.masked_fill(sick[:, None], 0.0).double() for t in (diagonal, beside))
    inner = beside[:, :-1]
    small = torch.diag_embed(diagonal) + torch.diag_embed(inner, 1) + torch.diag_embed(inner, -1)
    theta, y = torch.linalg.eigh(small)
    top, gap = theta[:, -1], theta[:, -1] - theta[:, -2]
    error = (beside[:, -1] * y[:, -1, -1]).square()
    largest: Tensor = top.clamp_min(0.0).sqrt().to(tokens.dtype)
    pending = (error > LANCZOS_TOLERANCE * top * gap) & ~sick
    if bool(pending.any()):
        largest[pending] = _gram_values(tokens[pending])[:, 0].to(tokens.dtype)
    return largest.masked_fill(sick, torch.nan)


def _lanczos(some: Sequences) -> tuple[Float[Tensor, "batch steps"], Float[Tensor, "batch steps"]]:
    """Diagonal and off-diagonal of T, starting from tokens added up with weights 1 + w, w of random look.

    Such a start lies in the span of the tokens and has s_i (u_i . (1 + w)) along the i-th singular direction: the
    ones give the mean token, most of the answer in real streams, and w makes sure that no direction is missing.
    """
    tokens = some.tokens
    tiny = torch.finfo(tokens.dtype).tiny
    weight = 1.0 + incoherent_columns(tokens.shape[1], 1).squeeze(-1).to(tokens)[some.number()]
    newest = (weight[:, None, :] @ tokens).mT
    newest = newest / torch.linalg.vector_norm(newest, dim=-2, keepdim=True).clamp_min(tiny)
    basis, diagonal, beside = newest, [], []
    for _ in range(LANCZOS_STEPS):
        image = tokens @ newest
        diagonal.append(image.square().sum(dim=(-2, -1)))
        grown = (image.mT @ tokens).mT  # a row times the tokens reads them in storage order
        for _ in range(2):  # the second pass removes what rounding left of the first where little remains
            grown = grown - basis @ (basis.mT @ grown)
        length = torch.linalg.vector_norm(grown, dim=(-2, -1))
        beside.append(length)
        # Below this the Krylov space is exhausted and the rest is rounding: that sequence goes on with zeros.
        alive = length > 1e-5 * torch.stack(diagonal).amax(dim=0)
        grown = grown / length.clamp_min(tiny)[:, None, None]
        newest = torch.where(alive[:, None, None], grown, 0.0)
        basis = torch.cat([basis, newest], dim=-1)
    return torch.stack(diagonal, dim=-1), torch.stack(beside, dim=-1)
