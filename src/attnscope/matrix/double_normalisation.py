"""One round of normalising over queries, then over keys (arXiv:2009.14308), by logarithms.

With c_j = ln sum_i e^s_ij over the queries that see key j, xi_ij = e^(s_ij - c_j), and the second normalisation is a
softmax of s_ij - c_j: nothing overflows, and a key that every query finds unlikely is not lost.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.matrix.visibility import Visible, past, scores, softmax_rows


def doubly_normalised_pattern(
    query: Float[Tensor, "batch head query dim"],
    key: Float[Tensor, "batch kv_head key dim"],
    visible: Visible,
    causal: bool,
    scale: float,
) -> Float[Tensor, "batch head query key"]:
    logits = scores_of_real_queries(query, key, visible, causal, scale)
    unseen = logits.isneginf().all(-2, keepdim=True)
    of_key = logits.masked_fill(unseen, 0.0).logsumexp(-2, keepdim=True)
    return softmax_rows(logits - of_key)


def scores_of_real_queries(
    query: Float[Tensor, "batch head query dim"],
    key: Float[Tensor, "batch kv_head key dim"],
    visible: Visible,
    causal: bool,
    scale: float,
) -> Float[Tensor, "batch head query key"]:
    """Logits, -inf where a key is not seen or the query is padding: padding must not count among the queries.

    In self-attention the queries are the keys' tokens, so that a key that nobody sees is a query that nobody asks.
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
