"""One round of normalising over queries, then over keys (arXiv:2009.14308), by logarithms.

With c_j = ln sum_i e^s_ij over the queries that see key j, xi_ij = e^(s_ij - c_j), and the second normalisation is a
softmax of s_ij - c_j: nothing overflows, and a key that is unlikely for every query is not lost.
"""

from __future__ import annotations

import torch

from attnscope.core.errors import RefusalError
from attnscope.matrix.visibility import Key, Query, Visible, Weights, past, scores, softmax_rows


def doubly_normalised_pattern(query: Query, key: Key, visible: Visible, causal: bool, scale: float) -> Weights:
    logits = scores_of_real_queries(query, key, visible, causal, scale)
    unseen = logits.isneginf().all(-2, keepdim=True)
    of_key = logits.masked_fill(unseen, 0.0).logsumexp(-2, keepdim=True)
    return softmax_rows(logits - of_key)


def scores_of_real_queries(query: Query, key: Key, visible: Visible, causal: bool, scale: float) -> Weights:
    """Return logits, -inf where a key is not seen or the query is padding, which must not count.

    In self-attention queries and keys are the same tokens: a key that no query sees is padding as a query too.
    """
    if query.shape[-2] != key.shape[-2]:
        raise RefusalError(
            "Doubly normalised attention adds up over queries and must know which are padding: it needs queries and "
            "keys of the same sequence."
        )
    if causal or _hides_the_future(visible):
        raise RefusalError(
            "Doubly normalised attention adds up over all queries, later ones too, so that it cannot be causal: choose "
            "another variant for this model."
        )
    logits = scores(query, key, visible, False, scale)
    if visible is None:
        return logits
    return logits.masked_fill(~visible.any(-2)[..., None], -torch.inf)


def _hides_the_future(visible: Visible) -> bool:
    if visible is None or 1 in visible.shape[-2:]:
        return False
    return not bool((visible & ~past(visible.shape[-2], visible.shape[-1], visible.device)).any())
