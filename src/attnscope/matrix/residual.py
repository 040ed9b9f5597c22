"""How far a matrix of tokens is from one token repeated in every row: the residual of Dong, Cordonnier and Loukas.

    res(X) = X - 1 x^T,  x = argmin ||X - 1 x^T||    (arXiv:2103.03404, section 2)

The best centre x depends on the norm: the column mean for Frobenius, the column median for the largest column sum, the
solution of a linear program for the largest row sum. The authors' own code, and so every figure of the paper, uses the
mean throughout; so does `relative_residual` here. The mean is never far off: for any centre c,

    x_i - mean = (1 - 1/n)(x_i - c) - (1/n) sum_{j != i} (x_j - c),

so ||X - 1 mean^T|| <= 2 (1 - 1/n) ||X - 1 c^T|| in both norms; with c = 0, the relative residual is below 2.

`YARDSTICKS` measure the residual relative to the tokens themselves, each about its own centre. Padding never counts. A
stream of zeros has residual zero.

    1,inf       sqrt(||.||_1 ||.||_inf), about the mean token: the figure of arXiv:2103.03404, as computed there.
                The mean is within a factor 2 (1 - 1/n) of the best centre.
    frobenius   about the mean token, which is the best centre
    1           largest column sum, about the median of every column, which is the best centre
    inf         largest row sum. The best centre solves a linear program: it is solved for matrices of up to 4,096
                entries; larger matrices are centred at the mean, within a factor 2 (1 - 1/n) of the best
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.matrix.visibility import TokenMask, Tokens, accumulation_dtype, sequences

Matrix = Float[Tensor, "*batch row column"]
Yardstick = Callable[[Tensor, Tensor], Tensor]
LARGEST_PROGRAM = 4096


def largest_column_sum(matrix: Matrix) -> Float[Tensor, "*batch"]:
    """Return ||M||_1, the norm induced by the l1 norm of vectors."""
    return matrix.abs().sum(dim=-2).amax(dim=-1)


def largest_row_sum(matrix: Matrix) -> Float[Tensor, "*batch"]:
    """Return ||M||_inf, the norm induced by the linf norm of vectors."""
    return matrix.abs().sum(dim=-1).amax(dim=-1)


def composite_norm(matrix: Matrix) -> Float[Tensor, "*batch"]:
    """Return ||M||_{1,inf} = sqrt(||M||_1 ||M||_inf), as in the paper; not a norm (no triangle inequality)."""
    return _composite(matrix.abs())


def _composite(size: Matrix) -> Float[Tensor, "*batch"]:
    """Return the composite norm of a matrix with these absolute values."""
    # The square roots come first: their product cannot overflow unless the norms themselves do.
    return size.sum(dim=-2).amax(dim=-1).sqrt() * size.sum(dim=-1).amax(dim=-1).sqrt()


def residual_about_mean(stream: Tokens, token_mask: TokenMask | None = None) -> Tokens:
    """Return X - 1 mean^T: the best centre for the Frobenius norm, and the one the authors use. Padding is 0."""
    return torch.cat([some.residual() for some in sequences(stream, token_mask)])


def residual_about_median(stream: Tokens, token_mask: TokenMask | None = None) -> Tokens:
    """Return X - 1 median^T: the smallest possible ||.||_1, since each column sum is smallest at its median."""
    parts = []
    for some in sequences(stream, token_mask):
        tokens = some.tokens.clone(memory_format=torch.contiguous_format)
        if some.padding is not None:  # padding is sorted after all real entries
            tokens.view(-1, tokens.shape[-1]).index_fill_(0, some.padding, torch.inf)
        middle = ((some.count - 1) / 2).long().clamp_min(0)[:, None, None].expand(-1, 1, tokens.shape[-1])
        median = tokens.sort(dim=-2).values.gather(-2, middle)
        parts.append(some.blank(some.tokens - median))
    return torch.cat(parts)


def residual_about_chebyshev(stream: Tokens, token_mask: TokenMask | None = None) -> Tokens:
    """Return X - 1 c^T with the smallest possible ||.||_inf, by one linear program per sequence: for small matrices.

    minimise s  subject to  -t_ij <= x_ij - c_j <= t_ij,  sum_j t_ij <= s for every token i.
    """
    mask = stream.new_ones(stream.shape[:2], dtype=torch.bool) if token_mask is None else token_mask
    answer = torch.zeros_like(stream, dtype=torch.float64)
    for index, (tokens, real) in enumerate(zip(stream.double(), mask, strict=True)):
        centre = _chebyshev_centre(tokens[real].detach().cpu().numpy())
        answer[index, real] = tokens[real] - tokens.new_tensor(centre)
    return answer


def _chebyshev_centre(tokens: np.ndarray) -> np.ndarray:
    from scipy.optimize import linprog
    from scipy.sparse import eye, hstack, kron, vstack

    rows, width = tokens.shape
    if rows == 0:
        return np.zeros(width)
    repeat = kron(np.ones((rows, 1)), eye(width))  # c_j for every token
    slack, none = eye(rows * width), np.zeros((rows * width, 1))
    above = hstack([-repeat, -slack, none])
    below = hstack([repeat, -slack, none])
    total = hstack([np.zeros((rows, width)), kron(eye(rows), np.ones((1, width))), -np.ones((rows, 1))])
    flat = tokens.reshape(-1)
    answer = linprog(
        c=np.concatenate([np.zeros(width + rows * width), [1.0]]),
        A_ub=vstack([above, below, total]).tocsr(),
        b_ub=np.concatenate([-flat, flat, np.zeros(rows)]),
        bounds=[(None, None)] * width + [(0, None)] * (rows * width + 1),
        method="highs",
    )
    if answer.status != 0:
        raise RefusalError(f"The linear program for the linf residual did not finish: {answer.message}")
    centre: np.ndarray = answer.x[:width]
    return centre


def residual_frobenius(stream: Tokens, token_mask: TokenMask | None = None) -> Float[Tensor, " batch"]:
    """Return ||X - 1 mean^T||_F, the distance d_M to the one-token subspace (arXiv:2202.08625).

    The difference is formed before it is squared: ||X||_F^2 - n |mean|^2 loses every digit once tokens are alike.
    """
    return torch.cat([_frobenius(some.residual()) for some in sequences(stream, token_mask)])


def relative_residual(stream: Tokens, token_mask: TokenMask | None = None) -> Float[Tensor, " batch"]:
    """Return ||X - 1 mean^T||_{1,inf} / ||X||_{1,inf}, as reported in the paper; zero for a stream of zeros."""
    parts = []
    for some in sequences(stream, token_mask):
        whole = composite_norm(some.tokens)
        rest = _composite(some.residual().abs_())
        parts.append(rest / whole.clamp_min(torch.finfo(whole.dtype).tiny))
    return torch.cat(parts)


def _frobenius(matrix: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(matrix, dim=(-2, -1))
    return norm


def _residual_for_rows(stream: Tokens, token_mask: TokenMask) -> Tokens:
    small = stream.shape[1] * stream.shape[2] <= LARGEST_PROGRAM
    return (residual_about_chebyshev if small else residual_about_mean)(stream, token_mask)


def _share(norm: Callable[[Tensor], Tensor], residual: Yardstick) -> Yardstick:
    def yardstick(stream: Tokens, token_mask: TokenMask) -> Float[Tensor, " batch"]:
        real = stream.to(accumulation_dtype(stream)).masked_fill(~token_mask[..., None], 0.0)
        whole = norm(real)
        return norm(residual(real, token_mask)).to(whole.dtype) / whole.clamp_min(torch.finfo(whole.dtype).tiny)

    return yardstick


YARDSTICKS: dict[str, Yardstick] = {
    "1,inf": relative_residual,
    "frobenius": _share(_frobenius, residual_about_mean),
    "1": _share(largest_column_sum, residual_about_median),
    "inf": _share(largest_row_sum, _residual_for_rows),
}
