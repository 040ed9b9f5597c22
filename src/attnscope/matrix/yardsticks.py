"""How large the residual is beside the tokens themselves, by four yardsticks, each with its own centre.

    1,inf       sqrt(||.||_1 ||.||_inf), about the mean token: the figure of arXiv:2103.03404, as computed there.
                The mean is within a factor 2 (1 - 1/n) of the best centre.
    frobenius   about the mean token, which is the best centre
    1           largest column sum, about the median of every column, which is the best centre
    inf         largest row sum. The best centre solves a linear program: it is solved for matrices of up to 4,096
                entries; larger ones are taken about the mean, within a factor 2 (1 - 1/n) of the best

Padding never counts. A stream of zeros has residual zero.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.matrix.residual import (
    Mask,
    Stream,
    largest_column_sum,
    largest_row_sum,
    relative_residual,
    residual_about_chebyshev,
    residual_about_mean,
    residual_about_median,
)
from attnscope.matrix.sequences import accumulation_dtype

LARGEST_PROGRAM = 4096


def _frobenius(stream: Stream, token_mask: Mask) -> Float[Tensor, " batch"]:
    return _share(lambda m: torch.linalg.vector_norm(m, dim=(-2, -1)), residual_about_mean, stream, token_mask)


def _one(stream: Stream, token_mask: Mask) -> Float[Tensor, " batch"]:
    return _share(largest_column_sum, residual_about_median, stream, token_mask)


def _inf(stream: Stream, token_mask: Mask) -> Float[Tensor, " batch"]:
    small = stream.shape[1] * stream.shape[2] <= LARGEST_PROGRAM
    return _share(largest_row_sum, residual_about_chebyshev if small else residual_about_mean, stream, token_mask)


def _share(
    norm: Callable[[Tensor], Tensor], residual: Callable[[Tensor, Tensor], Tensor], stream: Stream, token_mask: Mask
) -> Float[Tensor, " batch"]:
    real = stream.to(accumulation_dtype(stream)).masked_fill(~token_mask[..., None], 0.0)
    whole = norm(real)
    return norm(residual(real, token_mask)).to(whole.dtype) / whole.clamp_min(torch.finfo(whole.dtype).tiny)


YARDSTICKS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "1,inf": relative_residual,
    "frobenius": _frobenius,
    "1": _one,
    "inf": _inf,
}
