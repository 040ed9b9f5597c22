"""Softmax with a one in its denominator: a head may attend to nothing.

It is softmax with one more key whose logit is 0 and whose value is 0 (the zero sink of arXiv:2309.17453).
"""

from attnscope.core.variant import variant
from attnscope.matrix.plain_attention import attention_with_sink, sink_pattern
from attnscope.matrix.visibility import AttentionInputs, Mixed, Weights


def pattern(inputs: AttentionInputs) -> Weights:
    return sink_pattern(inputs, inputs.query.new_zeros(inputs.query.shape[1]))


@variant(
    kind="pattern",
    title="Softmax with one more key of value 0",
    summary="Softmax whose denominator has one more term, so that a row can sum to less than 1.",
    citation="arXiv:2309.17453",
    formula="A_ij = e^s_ij / (1 + sum_j e^s_ij)",
    cost="n^2",
    rows_sum_to_one=False,
    pattern=pattern,
    changes="a row whose log-sum-exp is c loses the share 1 / (1 + e^c) at once",
)
def softmax_plus_one(inputs: AttentionInputs) -> Mixed:
    return attention_with_sink(inputs)
