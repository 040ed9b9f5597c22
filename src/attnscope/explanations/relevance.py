"""Relevance through attention, without a map: arXiv:2103.15679, equations 5 to 11.

With Abar = mean over heads of (dA * A)^+, the paper keeps relevance maps R between tokens, which begin as the identity
(0 between two stacks), and lets every attention call add to them in the order in which they happen:

    self-attention     R^dd <- R^dd + Abar R^dd,   R^de <- R^de + Abar R^de                                  (6, 7)
    cross-attention    R^de <- R^de + (Rbar^dd)^T Abar Rbar^ee,   Rbar = I + rownorm(R - I)                  (8 to 10)

One answer is read from one row of R (or from a few: `start`), and a row needs no n x n map.

Self-attention. After L calls R = (I + Abar_L) ... (I + Abar_1), so r = start R is a row vector carried from the last
call to the first, r <- r + r Abar_l, each time one product (`matrix.relevance_products`).

Cross-attention. The term that call l adds to R^de is multiplied from the left by the self-attention above it, that is,
by the row r carried so far. The rest is (Rbar^dd)^T Abar Rbar^ee:

    (r (Rbar^dd)^T)_i = r_i + ((R^dd - I) r)_i / s_i,   s = (R^dd - I) 1     R^dd x is x carried from the first call up
    y Rbar^ee = y + z (R^ee - I),   z_j = y_j / s_j                           a row carried down the encoder

R^ee is used as it was when it was read: later self-attention of that stack does not count. Rows that begin in several
stacks are carried one by one and added up.

Two streams that attend to each other (co-attention) are handled by `matrix.relevance_maps`, which has equation (11)
too. Two towers that never meet are carried separately.

A row sum of 0 means R = I there: its share is 0, never 0/0. The identity at which a row begins is subtracted at the
end.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.explanation import explanation
from attnscope.matrix.relevance import (
    AttentionCall,
    TokenScores,
    from_left,
    from_right,
    of_two_streams,
    read_each_other,
)

Row = Float[Tensor, "batch token"]


@explanation(
    title="Relevance",
    summary="Attention times its gradient, where both support the answer, accumulated over all blocks.",
    citation="arXiv:2103.15679",
    formula="R <- R + mean over heads of (dA * A)^+ R, less the identity",
    cost="one backward pass",
    signed=False,
)
def relevance(calls: Sequence[AttentionCall], start: TokenScores) -> TokenScores:
    if read_each_other(calls):
        return of_two_streams(calls, start)
    found: dict[str, Tensor] = {}
    for last, weights in start.items():
        for stack, row in _of_one_stack(calls, last, weights).items():  # a stack in `start` may also be read by another
            found[stack] = found[stack] + row if stack in found else row
    return found


def _of_one_stack(calls: Sequence[AttentionCall], last: str, weights: Float[Tensor, " token"]) -> TokenScores:
    """Return the relevance of the tokens of stack `last`, and of every stack that it cross-attends to.

    The answer is read from the tokens of `last` with these weights.
    """
    mine = [(place, call) for place, call in enumerate(calls) if call.stack == last]
    row = weights[None]
    own = [call for _, call in mine if not call.crosses]
    sums = _row_sums(own, row) if len(own) < len(mine) else []  # only cross-attention needs row sums
    sent: dict[tuple[str, int], Row] = {}  # keyed by stack and by its number of self-attentions when it was read
    left = len(own)
    for place, call in reversed(mine):
        if call.crosses:
            y = from_left(call, _through_own(row, own[:left], sums[left - 1] if left else None))
            read = call.keys_from, len(_of_itself(calls[:place], call.keys_from))
            sent[read] = sent[read] + y if read in sent else y
        else:
            row = row + from_left(call, row)
            left -= 1
    found = {last: (row - weights)[0]}
    for (stack, earlier), y in sent.items():
        other = _through_other(y, _of_itself(calls, stack)[:earlier])[0]
        found[stack] = found[stack] + other if stack in found else other
    return found


def _of_itself(calls: Sequence[AttentionCall], stack: str) -> list[AttentionCall]:
    return [call for call in calls if call.stack == stack and not call.crosses]


def _row_sums(calls: Sequence[AttentionCall], like: Row) -> list[Row]:
    """Return s = (R - I) 1 after each of the calls."""
    ones = torch.ones_like(like)
    x, found = ones, []
    for call in calls:
        x = x + from_right(call, x)
        found.append(x - ones)
    return found


def _through_own(row: Row, below: Sequence[AttentionCall], sums: Row | None) -> Row:
    """Return the row r (Rbar^dd)^T of the module's docstring."""
    if sums is None:
        return row
    x = row
    for call in below:
        x = x + from_right(call, x)
    return row + _shares(x - row, sums)


def _through_other(y: Row, calls: Sequence[AttentionCall]) -> Row:
    """Return the row y Rbar^ee of the module's docstring."""
    if not calls:
        return y
    z = _shares(y, _row_sums(calls, y)[-1])
    carried = z
    for call in reversed(calls):
        carried = carried + from_left(call, carried)
    return y + carried - z


def _shares(x: Row, sums: Row) -> Row:
    return torch.where(sums > 0, x / torch.where(sums > 0, sums, 1.0), 0.0)
