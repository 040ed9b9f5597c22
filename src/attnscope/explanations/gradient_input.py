"""Gradient times input: the answer as if it were linear in the embedding of every token (arXiv:1605.01713)."""

from attnscope.core.explanation import explanation
from attnscope.matrix.relevance import TokenScores, TokenVectors


@explanation(
    title="Gradient x input",
    summary="The derivative of the answer along each token's vector.",
    citation="arXiv:1605.01713",
    formula="<e, d answer / d e>",
    cost="one backward pass",
    signed=True,
)
def gradient_input(embedding: TokenVectors, embedding_gradient: TokenVectors) -> TokenScores:
    return {stack: (vectors * embedding_gradient[stack]).sum(-1) for stack, vectors in embedding.items()}
