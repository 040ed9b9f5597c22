"""Fastmax of order 2: e^x cut off after 1 + x + x^2/2, which factorises, so that the cost is linear in n instead of
quadratic.

f(x) = ((x + 1)^2 + 1)/2 is never below 1/2, so weights stay positive however large x is. Queries and keys are centred
and divided by their standard deviation, x = scale q . k. Features: 1, the d coordinates, and their d(d+1)/2 products;
a product of two different coordinates stands for both orders and has weight 1, a square has weight 1/2
(arXiv:2402.07901).
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attnscope.core.variant import variant
from attnscope.matrix.linear_attention import factorised_attention, factorised_pattern
from attnscope.matrix.visibility import AttentionInputs, Mixed, Weights, mix


def pattern(inputs: AttentionInputs) -> Weights:
    query, key = standard(inputs.query), standard(inputs.unshared.key)
    product = inputs.scale * query @ key.mT
    return factorised_pattern(1 + product + product.square() / 2, inputs.mask)


@variant(
    kind="pattern",
    title="Fastmax of order 2",
    summary="The first three terms of the exponential of a normalised logit, computed without the pattern.",
    citation="arXiv:2402.07901",
    formula="A_ij = f(x_ij) / sum_j f(x_ij),  f(x) = 1 + x + x^2/2,  x = scale q_i . k_j of standardised q, k",
    cost="n",
    pattern=pattern,
    changes="a polynomial falls off less than an exponential: small weights become large ones",
)
def fastmax2(inputs: AttentionInputs) -> Mixed:
    plain = inputs.real_keys()
    if plain is None:  # queries sum over different keys, so the sum does not factorise
        return mix(pattern(inputs), inputs.value)
    sign, root = 1.0 if inputs.scale >= 0 else -1.0, abs(inputs.scale) ** 0.5
    pair = (lambda rows: _features(rows, sign * root), lambda rows: _features(rows, root))
    return factorised_attention(inputs.unshared, plain, pair)


def standard(tokens: Float[Tensor, "batch head token dim"]) -> Float[Tensor, "batch head token dim"]:
    """Return tokens of mean 0 and standard deviation 1, in float32 or better."""
    exact = tokens.to(torch.promote_types(tokens.dtype, torch.float32))
    return F.layer_norm(exact, exact.shape[-1:])


def _features(tokens: Float[Tensor, "batch head token dim"], size: float) -> Float[Tensor, "batch head token feature"]:
    tokens = size * standard(tokens)
    # Products coordinate by coordinate: indexing all pairs takes longer than the sums that use them.
    pairs = (tokens[..., i : i + 1] * tokens[..., i + 1 :] for i in range(tokens.shape[-1] - 1))
    return torch.cat([torch.ones_like(tokens[..., :1]), tokens, tokens.square() * 0.5**0.5, *pairs], -1)
