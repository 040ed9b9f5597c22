"""Doubly normalised attention: first over the queries that see a key, then over the keys that a query sees.

xi_ij = e^s_ij / sum_i e^s_ij, A_ij = xi_ij / sum_j xi_ij: no key can be explained away, because sum_i A_ij >= 1/n. It
is not autoregressive: the first sum includes later queries (arXiv:2009.14308).
"""

from attnscope.core.variant import variant
from attnscope.matrix.gate import doubly_normalised_pattern, scores_of_real_queries
from attnscope.matrix.linear_attention import divided
from attnscope.matrix.visibility import AttentionInputs, Mixed, Weights, mix


def pattern(inputs: AttentionInputs) -> Weights:
    """Compute the pattern as published, with two divisions; tests compare the logarithmic form with it."""
    logits = scores_of_real_queries(inputs)
    raised = logits.exp()
    of_queries = divided(raised.mT, raised.mT.sum(-1, keepdim=True)).mT
    return divided(of_queries, of_queries.sum(-1, keepdim=True))


@variant(
    kind="pattern",
    title="Doubly normalised attention",
    summary="Weights are normalised over queries before they are normalised over keys, so that no key is ignored.",
    citation="arXiv:2009.14308",
    formula="xi_ij = e^s_ij / sum_i e^s_ij;  A_ij = xi_ij / sum_j xi_ij",
    cost="n^2",
    memory="n^2",
    causal=False,
    cross=False,
    pattern=pattern,
    changes="it has no parameter; hybrid_normalised leads from softmax to it",
)
def doubly_normalised(inputs: AttentionInputs) -> Mixed:
    return mix(doubly_normalised_pattern(inputs), inputs.value)
