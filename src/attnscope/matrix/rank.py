"""How many directions a matrix of tokens uses: stable and effective rank.

Routes, chosen by cost and accuracy:

- singular values, and with them the effective rank: eigenvalues of the smaller Gram matrix (n x n or d x d) in float64.
  Squaring halves the digits: singular values below 1e-8 of the largest are lost. float32 would lose values below 3e-4,
  which are most of them once one activation is massive.
- stable rank: the same while the smaller side is at most `GRAM_LIMIT`. Beyond it, where all eigenvalues would cost far
  more than the model's own block, the largest one alone by block power iteration.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.matrix.spectrum import incoherent_columns, leading_singular_values
from attnscope.matrix.visibility import Sequences, TokenMask, Tokens, sequences

GRAM_LIMIT = 512
_BLOCK_COLUMNS = 4
_STEPS = 16


def singular_values(stream: Tokens, token_mask: TokenMask | None = None) -> Float[Tensor, "batch value"]:
    """Return all min(n, d) singular values by the smaller Gram matrix in float64, largest first."""
    return torch.cat([_gram_values(some.tokens) for some in sequences(stream, token_mask)])


def stable_rank(stream: Tokens, token_mask: TokenMask | None = None) -> Float[Tensor, " batch"]:
    """Return ||X||_F^2 / ||X||_2^2 (arXiv:1501.01571): 1 for rank one, at most min(n, d); zero for zeros."""
    parts = []
    for some in sequences(stream, token_mask):
        largest = _largest(some)
        # In float32 a massive activation would swallow small entries, depending on the order of the sum.
        energy = torch.linalg.vector_norm(some.tokens, dim=(-2, -1), dtype=largest.dtype)
        parts.append((energy / largest.clamp_min(torch.finfo(largest.dtype).tiny)).square())
    return torch.cat(parts)


def gram_stable_rank(stream: Tokens, token_mask: TokenMask | None = None) -> Float[Tensor, " batch"]:
    """Return ||X X^T||_F^2 / ||X X^T||_2^2 = sum_i s_i^4 / s_1^4, the stable rank of the Gram matrix; zero for zeros.

    arXiv:2410.07799 follows this through depth. s_i^4 / s_1^4 <= s_i^2 / s_1^2, so it never exceeds `stable_rank`.
    """
    parts = []
    for some in sequences(stream, token_mask):
        largest = _largest(some)
        energy = torch.linalg.matrix_norm(_gram(some.tokens)).to(largest.dtype)
        parts.append((energy / largest.square().clamp_min(torch.finfo(largest.dtype).tiny)).square())
    return torch.cat(parts)


def effective_rank(stream: Tokens, token_mask: TokenMask | None = None) -> Float[Tensor, " batch"]:
    """Return exp of the entropy of p_i = s_i / sum_j s_j (Roy and Vetterli 2007; arXiv:2210.02885); zero for zeros.

    It equals k if k singular values are equal and the others zero, lies between 1 and the rank, and ignores scale.
    """
    values = singular_values(stream, token_mask)
    total = values.sum(dim=-1, keepdim=True)
    share = values / total.clamp_min(torch.finfo(values.dtype).tiny)
    rank = torch.special.entr(share).sum(dim=-1).exp()
    return torch.where(total.squeeze(-1) == 0, 0.0, rank)


def _largest(some: Sequences) -> Float[Tensor, " batch"]:
    small = min(some.tokens.shape[1:]) <= GRAM_LIMIT
    return _gram_values(some.tokens)[:, 0] if small else _largest_singular_value(some)


def _gram(tokens: Tokens) -> Float[Tensor, "batch side side"]:
    """Return the smaller of X X^T and X^T X: they have the same non-zero eigenvalues."""
    wide = tokens if tokens.device.type == "mps" else tokens.double()  # that device has no float64
    return wide @ wide.mT if wide.shape[-2] <= wide.shape[-1] else wide.mT @ wide


def _gram_values(tokens: Tokens) -> Float[Tensor, "batch value"]:
    gram = _gram(tokens)
    sick = ~torch.isfinite(gram).all(dim=-1).all(dim=-1)
    squares = torch.linalg.eigvalsh(gram.masked_fill(sick[:, None, None], 0.0)).flip(-1)
    # Rounding leaves up to n eps of the largest in a zero eigenvalue, whose root would count as 1e-7 of s_1.
    floor = gram.shape[-1] * torch.finfo(gram.dtype).eps * squares[..., :1]
    values: Tensor = squares.masked_fill(squares <= floor, 0.0).sqrt().masked_fill(sick[:, None], torch.nan)
    return values


def _largest_singular_value(some: Sequences) -> Float[Tensor, " batch"]:
    """Return ||X||_2 by products with X alone, started from weighted sums of tokens.

    A start X^T w has s_i (u_i . w) along the i-th singular direction, so large directions are well represented from the
    beginning; w = 1 gives the mean token, which in real streams is most of the answer.
    """
    tokens = some.tokens
    columns = incoherent_columns(tokens.shape[1], _BLOCK_COLUMNS).to(tokens)
    columns[:, 0] = 1.0
    return leading_singular_values(
        lambda x: tokens @ x, lambda y: tokens.mT @ y, tokens.mT @ columns[some.number()], steps=_STEPS
    )[..., 0]
