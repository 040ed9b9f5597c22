"""The certificate: how well a head realises a pattern, recomputed from its tensors alone, in blocks of rows.

For row i with support S, logits s of the stored numbers (the mask applied), and r the bound on what rounding can do to
each of them, in whatever order a machine sums (`heads.slack`):

    ratio error = max over j, j' in S of (e^s_j / A_ij) / (e^s_j' / A_ij') - 1, each s anywhere within its r
               <= exp(max (t + r) - min (t - r)) - 1,   t_j = s_j - ln A_ij          (0 for a row of one key)
    leak        = sum over j not in S of softmax(s)_j <= sigmoid(lse(s + r off S) - lse(s - r on S))

So a head that is certified has the accuracy in exact arithmetic, which is what lower bounds speak of, and on every
machine that sums products in the stated precision: none passes because two different logits fall on one rounded number.
Both need no n x n array: blocks of rows keep memory at `BLOCK_ELEMENTS` numbers. A number that is not finite never
passes.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool

from attnscope.core.errors import RefusalError
from attnscope.heads.accuracy import Accuracy, precision
from attnscope.heads.head import Head
from attnscope.heads.slack import UNITS, logits_and_slack, of_the_scale
from attnscope.patterns.pattern import Pattern
from attnscope.records.certificate import Certificate

BLOCK_ELEMENTS = 2**22  # numbers of one block of logits: 32 MB in float64
NAMED_ROWS = 20


@torch.no_grad()
def certify(head: Head, pattern: Pattern, accuracy: Accuracy) -> Certificate:
    """Recompute what the head attends to and compare it with the pattern, row by row."""
    if (head.n, len(head.keys)) != (pattern.n, pattern.n_keys):
        raise RefusalError(
            f"The head has {head.n} queries and {len(head.keys)} keys, the pattern {pattern.n} x {pattern.n_keys}: "
            "they do not belong together."
        )
    ratio, leak, zero_ratio, max_logit, slack = (torch.empty(pattern.n, dtype=torch.float64) for _ in range(5))
    step = max(1, BLOCK_ELEMENTS // pattern.n_keys)
    for first in range(0, pattern.n, step):
        rows = slice(first, min(first + step, pattern.n))
        found = _block(head, pattern, rows.start, rows.stop)
        ratio[rows], leak[rows], zero_ratio[rows], max_logit[rows], slack[rows] = found
    bad = ~_good(ratio, leak, accuracy)
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
        rounding=_worst(slack),
        query_norm=_worst(head.queries.double().norm(dim=1)),
        key_norm=_worst(head.keys.double().norm(dim=1)),
        asked_ratio_error=accuracy.ratio_error,
        asked_leak=accuracy.leak,
        failing=int(bad.sum()),
        failing_rows=tuple(bad.nonzero().flatten().tolist()[:NAMED_ROWS]),
    )


@torch.no_grad()
def certified_rows(head: Head, pattern: Pattern, accuracy: Accuracy) -> Bool[torch.Tensor, " row"]:
    """Which rows are as accurate as asked; the head is certified where all of them are."""
    step = max(1, BLOCK_ELEMENTS // pattern.n_keys)
    good = [
        _good(found[0], found[1], accuracy)
        for first in range(0, pattern.n, step)
        for found in [_block(head, pattern, first, min(first + step, pattern.n))]
    ]
    return torch.cat(good)


def _good(ratio: torch.Tensor, leak: torch.Tensor, accuracy: Accuracy) -> torch.Tensor:
    return (ratio <= accuracy.ratio_error) & (leak <= accuracy.leak)  # NaN compares false, so it is bad


def _block(head: Head, pattern: Pattern, first: int, last: int) -> tuple[torch.Tensor, ...]:
    """Ratio error, leak, e2, largest logit and largest slack on the support, row by row."""
    unit = UNITS[precision(head.dtype)]
    logits, slack = logits_and_slack(head.queries[first:last], head.keys, head.scale, unit)
    size = last - first
    hidden = torch.arange(len(head.keys)) > torch.arange(first, last)[:, None] if head.causal else None
    max_logit = logits.abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
    if hidden is not None:
        max_logit.masked_fill_(hidden, 0)
        logits.masked_fill_(hidden, -torch.inf)
    entries = slice(int(pattern.starts[first]), int(pattern.starts[last]))
    rows, columns = torch.from_numpy(pattern.rows[entries] - first), torch.from_numpy(pattern.columns[entries])

    def by_row(values: torch.Tensor, how: str) -> torch.Tensor:
        start = torch.full((size,), -torch.inf if how == "amax" else torch.inf, dtype=torch.float64)
        return start.scatter_reduce(0, rows, values, how, include_self=True)

    on = logits[rows, columns]
    peak = by_row(on, "amax")
    on_slack = slack[rows, columns] + of_the_scale(on - peak[rows], head.scale, unit)
    residual = on - torch.from_numpy(pattern.weights[entries]).log()
    ratio = torch.expm1(by_row(residual + on_slack, "amax") - by_row(residual - on_slack, "amin"))
    ratio[torch.from_numpy(pattern.counts[first:last] == 1) & ratio.isfinite()] = 0
    on_lse = torch.zeros(size, dtype=torch.float64).scatter_add(0, rows, (on - on_slack - peak[rows]).exp()).log()
    # From here on relative to the peak, as softmax does it.
    logits -= peak[:, None]
    slack += of_the_scale(logits, head.scale, unit)
    logits += slack
    logits[rows, columns] = -torch.inf
    off_lse = logits.logsumexp(-1)
    zero_ratio = (logits.amax(-1) + peak - by_row(on - on_slack, "amin")).exp()
    return ratio, torch.sigmoid(off_lse - on_lse), zero_ratio, max_logit.amax(-1), by_row(on_slack, "amax")


def _worst(values: torch.Tensor) -> float:
    return float(_infinite(values).max())


def _infinite(values: torch.Tensor) -> torch.Tensor:
    """NaN counts as infinitely bad: it must not vanish in a maximum or hide in a mean."""
    return values.nan_to_num(nan=torch.inf, posinf=torch.inf)
