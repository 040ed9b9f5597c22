"""QK-Clip: query and key projections of a head are scaled down once its largest logit exceeds a threshold.

Logits of head h are multiplied by min(1, t / S_h), S_h the largest logit seen. Query and key are each multiplied by its
square root; if heads share keys (their factors differ), the query takes the whole factor, so that no other head changes
(arXiv:2507.20534).
"""

from collections.abc import Mapping

from jaxtyping import Float
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.core.variant import variant


@variant(
    kind="weights",
    title="QK-Clip: largest logit bounded",
    summary="Query and key projections of heads whose largest logit is above a threshold are scaled down.",
    citation="arXiv:2507.20534",
    formula="W_Q, W_K of head h <- sqrt(min(1, t / S_h)) W_Q, W_K,  S_h the largest logit of head h",
    cost="none",
    trains=False,
    settings={"max_logit": "the largest logit that each head was seen to have", "threshold": "the largest allowed"},
    keeps="heads whose largest logit is at most the threshold stay as they are, to the bit",
)
def qk_clip(
    weights: Mapping[str, Tensor], *, max_logit: Float[Tensor, " head"], threshold: float = 100.0
) -> dict[str, Tensor]:
    """Scale `query_weight` and `key_weight`, both `[head*dim, width]`, and their biases, if any."""
    if threshold <= 0:
        raise RefusalError(f"A threshold of {threshold:g} would remove all logits: give a number above 0.")
    heads = len(max_logit)
    if "query_weight" not in weights or len(weights["query_weight"]) % heads:
        raise RefusalError(f"QK-Clip needs query_weight with rows for {heads} heads, and a largest logit for each.")
    factor = (threshold / max_logit.clamp_min(threshold)).to(weights["query_weight"].dtype)
    shared = "key_weight" in weights and len(weights["key_weight"]) != len(weights["query_weight"])
    factors = {"query": factor if shared or "key_weight" not in weights else factor.sqrt(), "key": factor.sqrt()}
    changed = dict(weights)
    for side in ("query",) if shared or "key_weight" not in weights else ("query", "key"):
        for name in (f"{side}_weight", f"{side}_bias"):
            if name in weights:
                rows = weights[name].reshape(heads, -1, *weights[name].shape[1:])
                changed[name] = (rows * factors[side].view(-1, *[1] * (rows.ndim - 1))).flatten(0, 1)
    return changed
