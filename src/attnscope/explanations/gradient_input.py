"""Gradient times input: the answer as if it were linear in the embedding of every token (arXiv:1605.01713)."""

from jaxtyping import Float
from torch import Tensor

from attnscope.core.explanation import explanation


@explanation(
    title="Gradient x input",
    summary="How fast the answer moves with each token's vector, along that vector.",
    citation="arXiv:1605.01713",
    formula="<e, d answer / d e>",
    cost="one backward pass",
    signed=True,
)
def gradient_input(
    embedding: dict[str, Float[Tensor, "token width"]], embedding_gradient: dict[str, Float[Tensor, "token width"]]
) -> dict[str, Float[Tensor, " token"]]:
    return {stack: (vectors * embedding_gradient[stack]).sum(-1) for stack, vectors in embedding.items()}
