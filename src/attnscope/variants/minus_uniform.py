"""A - J: attention without the uniform pattern, which carries its largest singular value.

A row of softmax weights is J (equal weight on all visible keys) plus a part that distinguishes tokens. J makes tokens
alike, so it is subtracted; under a mask, J averages the tokens that the query sees. J V is a mean, or a cumulative
mean, so the fused kernel can be used.
"""

from attnscope.core.variant import variant
from attnscope.matrix.plain_attention import mean_of_visible, plain_attention, softmax_pattern, uniform_pattern
from attnscope.matrix.visibility import AttentionInputs, Mixed, Weights


def pattern(inputs: AttentionInputs) -> Weights:
    return softmax_pattern(inputs) - uniform_pattern(inputs)


@variant(
    kind="pattern",
    title="Attention without its mean",
    summary="Softmax attention minus the mean of all visible values.",
    citation="arXiv:2410.07799",
    formula="(A - J) V,  J_ij = 1 / (number of keys that i sees)",
    cost="n^2",
    rows_sum_to_one=False,
    nonnegative=False,
    pattern=pattern,
    changes="it has no parameter; shaped with alpha 0, beta 1, gamma 0 leads from softmax to it as gamma goes to 1",
)
def minus_uniform(inputs: AttentionInputs) -> Mixed:
    return plain_attention(inputs) - mean_of_visible(inputs)
