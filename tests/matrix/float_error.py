"""Error bounds of float32 for the statistics of a pattern, on any processor and in any order of summation.

Write u = 2^-24 for the rounding of one float32 operation, d for the length of a query, n for the number of keys.
Rounding errors have random signs, so k of them add up like sqrt(k). Systematic errors, such as that of an approximate
exponential, are added in full.

    a logit   is a dot product of d terms and a product with the scale: off by sqrt(d + 1) u T, where
              T_ij = scale sum_l |q_il k_jl| is more than any of its partial sums.
    a sum     of n terms of one sign is off by a relative sqrt(n) u.
    exp       is good to 20 units in the last place, 40 u, in torch's fused kernel (`exp_u20`; how good it really is
              differs between processors) and to one, 2 u, elsewhere.
    lse       The errors of the logits reach it weighted by A: sqrt(d + 1) u sum_j A_ij T_ij. Its exponentials add
              u R_i for their rounded arguments, where R_i is the spread of the row's logits, and 40 u of their own;
              their sum adds sqrt(n) u; the logarithm and the sum that makes it lse_i add 2 u |lse_i|.
    ln A      = s - lse has both errors, and the rounding of s and of the difference: u (|s| + |s - lse|).
    A         has the error of ln A as its relative error, and that of one more exponential.

The statistics are sums over A and inherit the relative errors of what they add: see `promised`. Measured errors
are at most a fifth of these bounds, with torch's kernels for AVX2 and with those for any processor.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope.matrix.dense import dense_logits, dense_pattern
from attnscope.matrix.scores import Scores

UNIT = 2.0**-24
KERNEL_EXP, EXP = 40.0, 2.0  # units: 20 in the last place, and 1


def relative_error(scores: Scores) -> Tensor:
    """Return the relative error that float32 arithmetic on a plain dot product may leave in each A_ij."""
    logits, pattern, logit = dense_logits(scores), dense_pattern(scores), logit_error(scores)
    seen = torch.isfinite(logits)
    keys = scores.key.shape[2]
    lse = logits.logsumexp(-1, keepdim=True)
    spread = (logits.amax(-1, keepdim=True) - logits).masked_fill(~seen, 0.0).amax(-1, keepdim=True)
    lse_error = (pattern * logit).sum(-1, keepdim=True) + KERNEL_EXP + spread + keys**0.5 + 2 * lse.abs()
    log_error = logit + lse_error + logits.abs() + (logits - lse).abs()
    return UNIT * (log_error + EXP).masked_fill(~seen, 0.0)


def logit_error(scores: Scores) -> Tensor:
    """Return by how many units each dot product may be off."""
    key = scores.key.double().abs().repeat_interleave(scores.sharing, 1)
    terms = abs(scores.scale) * scores.query.double().abs() @ key.mT
    return (scores.query.shape[-1] + 1) ** 0.5 * terms


def top_error(scores: Scores) -> Tensor:
    """Return a bound on the error of the largest logit: that of the worst logit of its row, which is rounded itself, in
    s - lse, and in (s - lse) + lse.
    """
    logits = dense_logits(scores)
    seen = torch.isfinite(logits)
    rounded = 2 * logits.abs() + (logits - logits.logsumexp(-1, keepdim=True)).abs()
    return UNIT * (logit_error(scores) + rounded).masked_fill(~seen, 0.0).amax(-1)


def promised(scores: Scores) -> dict[str, Tensor]:
    """Return the largest error float32 may make in each statistic, if no token is padding."""
    pattern, off = dense_pattern(scores), relative_error(scores)
    rows, keys = pattern.shape[2:]
    apart = (torch.arange(rows)[:, None] - torch.arange(keys)).abs()
    sums = keys**0.5 * UNIT  # of a sum along a row
    information = torch.special.entr(pattern)  # A |ln A|
    mass = pattern * off
    worst = off.amax((-2, -1))  # of each head: in a cosine there are two of each head
    return {
        # A times ln A: the first has relative error `off`, the second, from the logits, absolute error `off`.
        "row_entropy": (mass + information * (off + sums)).sum(-1),
        "row_sum_squares": (pattern.square() * (2 * off + sums)).sum(-1),
        "row_mass": (mass + pattern * sums).sum(-1),
        "row_peak": mass.amax(-1),
        "row_top_logit": top_error(scores),
        "first_key_mass": mass[..., 0],
        "self_mass": mass.diagonal(0, -2, -1),
        "previous_mass": torch.nn.functional.pad(mass.diagonal(-1, -2, -1), (1, 0)),
        "mean_distance": (apart * (mass + pattern * sums)).sum(-1),
        "received": (mass + pattern * rows**0.5 * UNIT).sum(-2),
        # A diagonal, without its entry in the first column.
        "mass_by_distance": _diagonals((mass + pattern * rows**0.5 * UNIT).masked_fill(torch.arange(keys) == 0, 0.0)),
        # <A_g, A_h> is off by off_g + off_h and a sum, each norm by as much again; then the mean over the rows.
        "head_overlap": 2 * (worst[:, :, None] + worst[:, None, :]) + 2 * sums + rows**0.5 * UNIT,
    }


def _diagonals(errors: Tensor) -> Tensor:
    """Return the sums at j = i - d, for every distance d of a causal pattern."""
    return torch.stack([errors.diagonal(-d, -2, -1).sum(-1) for d in range(errors.shape[2])], -1)
