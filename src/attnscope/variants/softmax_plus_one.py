"""Softmax with a one in its denominator: a head may attend to nothing.

It is softmax with one more key whose logit is 0 and whose value is 0 (the zero sink of arXiv:2309.17453).
"""

from attnscope.core.variant import variant
from attnscope.matrix.plain_attention import attention_with_sink, sink_pattern
from attnscope.matrix.visibility import Key, Mixed, Query, Value, Visible, Weights


def pattern(query: Query, key: Key, *, visible: Visible, causal: bool, scale: float) -> Weights:
    zeros = query.new_zeros(query.shape[1])
    return sink_pattern(query, key, zeros, visible=visible, causal=causal, scale=scale)


@variant(
    kind="pattern",
    title="Softmax with one more key of value 0",
    summary="Softmax whose denominator has one more term, so that a row can give less than all its weight.",
    citation="arXiv:2309.17453",
    formula="A_ij = e^s_ij / (1 + sum_j e^s_ij)",
    cost="n^2",
    rows_sum_to_one=False,
    pattern=pattern,
    changes="a row whose log-sum-exp is c loses the share 1 / (1 + e^c) at once",
)
def softmax_plus_one(query: Query, key: Key, value: Value, *, visible: Visible, causal: bool, scale: float) -> Mixed:
    return attention_with_sink(query, key, value, None, visible=visible, causal=causal, scale=scale)
