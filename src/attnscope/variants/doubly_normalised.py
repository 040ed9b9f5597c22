"""Doubly normalised attention: first over the queries that look at a key, then over the keys that a query sees.

xi_ij = e^s_ij / sum_i e^s_ij, A_ij = xi_ij / sum_j xi_ij: no key can be explained away, sum_i A_ij >= 1/n. Not
autoregressive: the first sum runs over later queries (arXiv:2009.14308).
"""

from attnscope.core.variant import variant
from attnscope.matrix.gate import doubly_normalised_pattern, scores_of_real_queries
from attnscope.matrix.linear_attention import divided
from attnscope.matrix.visibility import Key, Mixed, Query, Value, Visible, Weights, mix


def pattern(query: Query, key: Key, *, visible: Visible, causal: bool, scale: float) -> Weights:
    """As published, in two divisions; the form by logarithms is tested against it."""
    logits = scores_of_real_queries(query, key, visible, causal, scale)
    raised = logits.exp()
    of_queries = divided(raised.mT, raised.mT.sum(-1, keepdim=True)).mT
    return divided(of_queries, of_queries.sum(-1, keepdim=True))


@variant(
    kind="pattern",
    title="Doubly normalised attention",
    summary="Weights that are shared among the queries before they are shared among the keys, so that no key is lost.",
    citation="arXiv:2009.14308",
    formula="xi_ij = e^s_ij / sum_i e^s_ij;  A_ij = xi_ij / sum_j xi_ij",
    cost="n^2",
    memory="n^2",
    causal=False,
    cross=False,
    pattern=pattern,
    changes="it has no parameter; hybrid_normalised leads from softmax to it",
)
def doubly_normalised(query: Query, key: Key, value: Value, *, visible: Visible, causal: bool, scale: float) -> Mixed:
    return mix(doubly_normalised_pattern(query, key, visible, causal, scale), value)
