"""Fastmax of order 1: e^x cut off after 1 + x, which factorises, so that the cost is linear in n instead of quadratic.

Queries and keys are centred and brought to length 1, so that |x| <= 1 and no weight is negative: without the bound
41% of them would be (arXiv:2402.07901). The paper divides by the longest query of the sequence, which depends on
later tokens; here every token is divided by its own length.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attnscope.core.variant import variant
from attnscope.matrix.linear_attention import factorised_attention, factorised_pattern
from attnscope.matrix.visibility import AttentionInputs, Mixed, Weights, mix


def pattern(inputs: AttentionInputs) -> Weights:
    query, key = unit(inputs.query), unit(inputs.unshared.key)
    return factorised_pattern(1 + query @ key.mT, inputs.mask)


@variant(
    kind="pattern",
    title="Fastmax of order 1",
    summary="The first two terms of the exponential of the cosine between query and key, computed without the pattern.",
    citation="arXiv:2402.07901",
    formula="A_ij = f(x_ij) / sum_j f(x_ij),  f(x) = 1 + x,  x = cos(q_i, k_j) after centring",
    cost="n",
    pattern=pattern,
    changes="lengths of queries and keys are lost, and so is every sharp pattern",
)
def fastmax1(inputs: AttentionInputs) -> Mixed:
    plain = inputs.real_keys()
    if plain is None:  # queries sum over different keys, so the sum does not factorise
        return mix(pattern(inputs), inputs.value)
    return factorised_attention(inputs.unshared, plain, (_features, _features))


def unit(tokens: Float[Tensor, "batch head token dim"]) -> Float[Tensor, "batch head token dim"]:
    """Return tokens centred and of length 1, in float32 or better."""
    exact = tokens.to(torch.promote_types(tokens.dtype, torch.float32))
    return F.normalize(exact - exact.mean(-1, keepdim=True), dim=-1)


def _features(tokens: Float[Tensor, "batch head token dim"]) -> Float[Tensor, "batch head token feature"]:
    """Return the features (1, q), since 1 + q.k = (1, q) . (1, k)."""
    return F.pad(unit(tokens), (1, 0), value=1.0)
