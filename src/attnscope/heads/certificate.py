"""The certificate: how well a head realises a pattern, recomputed from its tensors alone, in blocks of rows.

For row i with support S and logits s (after rounding, accumulated in float32, the mask applied):

    ratio error = max over j, j' in S of (e^s_j / A_ij) / (e^s_j' / A_ij') - 1
                = exp(max r - min r) - 1,  r_j = s_j - ln A_ij
    leak        = sum over j not in S of softmax(s)_j = sigmoid(lse(s off S) - lse(s on S))

Both need no n x n array: blocks of rows keep memory at `BLOCK * n` numbers. A number that is not finite never passes.
"""

from __future__ import annotations

import torch

from attnscope.core.errors import RefusalError
from attnscope.heads.accuracy import Accuracy
from attnscope.heads.head import Head
from attnscope.patterns.pattern import Pattern
from attnscope.records.certificate import Certificate

BLOCK_ELEMENTS = 2**24  # numbers of one block of logits: 64 MB in float32
NAMED_ROWS = 20


@torch.no_grad()
def certify(head: Head, pattern: Pattern, accuracy: Accuracy) -> Certificate:
    """Recompute what the head attends to and compare it with the pattern, row by row."""
    if (head.n, len(head.keys)) != (pattern.n, pattern.n_keys):
        raise RefusalError(
            f"The head has {head.n} queries and {len(head.keys)} keys, the pattern {pattern.n} x {pattern.n_keys}: "
            "they do not belong together."
        )
    ratio, leak, zero_ratio, max_logit = (torch.empty(pattern.n, dtype=torch.float64) for _ in range(4))
    step = max(1, BLOCK_ELEMENTS // pattern.n_keys)
    for first in range(0, pattern.n, step):
        rows = slice(first, min(first + step, pattern.n))
        ratio[rows], leak[rows], zero_ratio[rows], max_logit[rows] = _block(head, pattern, rows.start, rows.stop)
    bad = ~((ratio <= accuracy.ratio_error) & (leak <= accuracy.leak))  # NaN compares false, so it is bad
    return Certificate(
        n=pattern.n,
        k=pattern.k,
        d=head.width,
        dtype=head.dtype,
        causal=head.causal,
        ratio_error=_worst(ratio),
        mean_ratio_error=float(_infinite(ratio).mean()),
        leak=_worst(leak),
        mean_leak=float(_infinite(leak).mean()),
        zero_ratio=_worst(zero_ratio),
        max_logit=_worst(max_logit),
        query_norm=_worst(head.queries.double().norm(dim=1)),
        key_norm=_worst(head.keys.double().norm(dim=1)),
        asked_ratio_error=accuracy.ratio_error,
        asked_leak=accuracy.leak,
        failing=int(bad.sum()),
        failing_rows=tuple(bad.nonzero().flatten().tolist()[:NAMED_ROWS]),
    )


def _block(head: Head, pattern: Pattern, first: int, last: int) -> tuple[torch.Tensor, ...]:
    logits = head.logits(first, last)
    entries = slice(int(pattern.starts[first]), int(pattern.starts[last]))
    rows, columns = torch.from_numpy(pattern.rows[entries] - first), torch.from_numpy(pattern.columns[entries])
    on = logits[rows, columns].double()
    max_logit = logits.abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
    if head.causal:
        max_logit = max_logit.masked_fill(logits == -torch.inf, 0)
    residual = on - torch.from_numpy(pattern.weights[entries]).log()
    size = last - first

    def by_row(values: torch.Tensor, how: str) -> torch.Tensor:
        start = torch.full((size,), -torch.inf if how == "amax" else torch.inf, dtype=torch.float64)
        return start.scatter_reduce(0, rows, values, how, include_self=True)

    ratio = torch.expm1(by_row(residual, "amax") - by_row(residual, "amin"))
    peak = by_row(on, "amax")
    on_lse = torch.zeros(size, dtype=torch.float64).scatter_add(0, rows, (on - peak[rows]).exp()).log()
    # Relative to the peak, as softmax does it: at logits of 1e7 a float32 log-sum-exp would itself be off by a half.
    logits -= peak.to(logits.dtype)[:, None]
    logits[rows, columns] = -torch.inf
    off_lse = logits.logsumexp(-1).double()
    zero_ratio = (logits.amax(-1).double() + peak - by_row(on, "amin")).exp()
    return ratio, torch.sigmoid(off_lse - on_lse), zero_ratio, max_logit.amax(-1).double()


def _worst(values: torch.Tensor) -> float:
    return float(_infinite(values).max())


def _infinite(values: torch.Tensor) -> torch.Tensor:
    """NaN counts as infinitely bad: it must not vanish in a maximum or hide in a mean."""
    return values.nan_to_num(nan=torch.inf, posinf=torch.inf)
