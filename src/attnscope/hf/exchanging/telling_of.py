"""What whoever looks on is told of an attention that was exchanged: its own pattern, and which statistics of it hold.

A variant of kind `logits` is softmax attention of other queries and keys: those that the fused kernel was given. Any
other writes its pattern out by its own slow form. Where columns of a pattern are no tokens, there is none to look at.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope.hf.exchanging.call import Call
from attnscope.hf.exchanging.part import Part
from attnscope.hf.seeing.telling import Told, Weights, somebody_listens, tell
from attnscope.matrix.plain_attention import softmax_pattern
from attnscope.matrix.visibility import for_every_head


def tell_of_exchange(part: Part, call: Call) -> None:
    """Nothing is computed unless somebody listens and asks."""
    if not somebody_listens():
        return
    card = part.variant.card
    heads = tuple(range(call.query.shape[1])) if part.heads is None else part.heads
    if card.kind == "logits":
        tell(Told(logits_of=heads))
    elif part.variant.pattern is None or not card.keys_are_tokens:
        tell(
            Told(
                unseen=f"{card.name} does not give every token a weight of its own, so there is no pattern of tokens "
                "to look at: measure the model with another variant, or by its loss."
            )
        )
    else:
        weights = Weights(
            write_out=lambda: pattern_of(part, call),
            visible=call.visible,
            causal=call.causal,
            scale=call.scale,
            holds=frozenset(card.statistics),
            sums_to_one=card.rows_sum_to_one,
        )
        tell(Told(weights=weights))


def pattern_of(part: Part, call: Call) -> Tensor:
    """`[batch, head, query, key]`: the variant's pattern on its heads, softmax on the others."""
    assert part.variant.pattern is not None
    if part.heads is None:
        whole: Tensor = part.variant.pattern(call.query, call.key, **call.rule, **part.arguments)
        return whole
    plain = softmax_pattern(call.query, call.key, **call.rule)
    mine, count, visible = list(part.heads), call.query.shape[1], call.visible
    visible = visible[:, mine] if visible is not None and visible.shape[1] != 1 else visible
    key = for_every_head(call.key, count)[:, mine]
    rule = {**call.rule, "visible": visible}
    own: Tensor = part.variant.pattern(call.query[:, mine], key, **rule, **part.arguments)
    return plain.index_copy(1, torch.tensor(mine, device=plain.device), own.to(plain.dtype))
