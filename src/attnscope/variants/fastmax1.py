"""Fastmax of order 1: e^x cut off after 1 + x, which factorises, so that cost grows with n and not with n^2.

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
from attnscope.matrix.visibility import Key, Mixed, Query, Value, Visible, Weights, for_every_head, mix, real_keys, seen


def pattern(query: Query, key: Key, *, visible: Visible, causal: bool, scale: float) -> Weights:
    query, key = unit(query), unit(for_every_head(key, query.shape[1]))
    mask = seen(query.shape[-2], key.shape[-2], visible, causal, query.device)
    return factorised_pattern(1 + query @ key.mT, mask)


@variant(
    kind="pattern",
    title="Fastmax of order 1",
    summary="The first two terms of the exponential of the cosine between query and key, without the pattern.",
    citation="arXiv:2402.07901",
    formula="A_ij = f(x_ij) / sum_j f(x_ij),  f(x) = 1 + x,  x = cos(q_i, k_j) after centring",
    cost="n",
    pattern=pattern,
    changes="lengths of queries and keys are lost, and so is every sharp pattern",
)
def fastmax1(query: Query, key: Key, value: Value, *, visible: Visible, causal: bool, scale: float) -> Mixed:
    plain = real_keys(visible, causal, query.shape[-2])
    if plain is None:  # queries sum over different keys: nothing to factorise
        return mix(pattern(query, key, visible=visible, causal=causal, scale=scale), value)
    key, value = for_every_head(key, query.shape[1]), for_every_head(value, query.shape[1])
    pair = (_features, _features)
    return factorised_attention(query, key, value, features=pair, real=plain.real, causal=plain.causal)


def unit(tokens: Float[Tensor, "batch head token dim"]) -> Float[Tensor, "batch head token dim"]:
    """Return tokens centred and of length 1, in float32 or better."""
    exact = tokens.to(torch.promote_types(tokens.dtype, torch.float32))
    return F.normalize(exact - exact.mean(-1, keepdim=True), dim=-1)


def _features(tokens: Float[Tensor, "batch head token dim"]) -> Float[Tensor, "batch head token feature"]:
    """1 + q.k = (1, q) . (1, k)."""
    return F.pad(unit(tokens), (1, 0), value=1.0)
