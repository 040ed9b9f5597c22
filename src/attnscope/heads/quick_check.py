"""A check that is quicker than the certificate, and never kinder: what passes here, `heads.certificate` certifies.

The certificate bounds what rounding does to each logit (`heads.slack`). With m_c = max_j |k_jc|, a = sum_c |q_c| m_c,
every bound (1) and (2) there, and what the rounding of the scale adds (|s_j - s_peak| <= 2 scale a), is at most

    r = scale a (gamma_rounds + gamma_rounds' + 2 u) (1 + 1e-6)        for all logits of the row alike, so

    ratio error  <=  exp(max t - min t + 2 r) - 1
    leak         <=  sigmoid(ln(n - |S|) + max over j not in S of s_j - lse over S of s + 2 r):

the sum over zeros is at most their number times the largest. No array of bounds, no exponentials of n numbers.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.heads.accuracy import Accuracy
from attnscope.heads.rows import Rows
from attnscope.heads.slack import HERE, MILLIONTH, UNITS, gamma


def surely_certified(
    queries: Float[Tensor, "row width"], keys: Float[Tensor, "key width"], rows: Rows, accuracy: Accuracy
) -> Bool[Tensor, " row"]:
    """Rows that the certificate passes for sure; False says nothing. Queries and keys as the head stores them."""
    n, width = keys.shape
    unit, scale = UNITS[accuracy.dtype], width**-0.5
    exact = queries.double()
    largest = keys.abs().amax(0).double()
    slack = (exact.abs() @ largest) * scale * MILLIONTH * (gamma(width + 1, unit) + gamma(width + 1, HERE) + 2 * unit)
    logits = (exact * scale) @ keys.double().T
    on = logits.gather(1, rows.support)
    rows.hide(logits, -torch.inf)
    residual = on - rows.logs
    residual = torch.where(rows.real, residual, residual[:, :1])  # empty places repeat the first
    ratio = torch.expm1(residual.amax(1) - residual.amin(1) + 2 * slack)
    alone = rows.real.sum(1) == 1
    mass = torch.where(rows.real, on, -torch.inf).logsumexp(1)
    zeros = (n - rows.real.sum(1)).double().log()
    leak = torch.sigmoid(zeros + logits.amax(1) - mass + 2 * slack)
    return ((ratio <= accuracy.ratio_error) | alone & ratio.isfinite()) & (leak <= accuracy.leak)
