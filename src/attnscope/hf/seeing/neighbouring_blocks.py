"""Blocks that see themselves and their two neighbours (LongT5, Guo et al. 2022, arXiv:2112.07916, section 3.1), read as
one call.

Tokens stand in blocks of w + 1, and key j is seen by query i where |i - j| <= w, which never reaches past a
neighbouring block. Logits are not scaled, and have a bias for every distance,

    A_ij = softmax_j(q_i . k_j + b_(j - i)),

which the model keeps for a block and its neighbours, with what is hidden at minus 1e10: an exponential of zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.hf.seeing.sighting import Sighting
from attnscope.hf.seeing.tensors import by_head, projected
from attnscope.matrix.scores import Scores
from attnscope.trace.frame import PassedOn

HIDDEN = -1e9


def neighbouring_blocks(
    module: Any, given: Mapping[str, Any], result: Any, written: Sequence[Tensor]
) -> Iterator[Sighting]:
    tokens: Float[Tensor, "batch token width"] = given["hidden_states"]
    heads = module.n_heads
    query, key, value = (projected(part, tokens, heads) for part in (module.q, module.k, module.v))
    bias = unblocked(result[1].detach(), tokens.shape[1])
    seen = bias > HIDDEN
    (mixed,) = written
    yield Sighting(
        Scores(query.detach(), key.detach(), scale=1.0, allowed=seen, bias=bias.masked_fill(~seen, 0.0)),
        value.detach(),
        by_head(mixed.detach(), heads),
        "pieces",
        (query, value),
        passed_on=PassedOn(mixed, lambda output: by_head(output, heads)),
        rows=seen.any(-1).any(1).expand(len(tokens), -1),
    )


def unblocked(bias: Float[Tensor, "batch block head row near"], tokens: int) -> Float[Tensor, "batch head token key"]:
    """From rows of blocks, and keys of three blocks side by side, to all tokens by all tokens; what is not near is
    hidden."""
    batch, blocks, heads, size, _ = bias.shape
    every = -(-tokens // size)
    bias = bias.expand(batch, every if blocks == 1 else blocks, -1, -1, -1)
    whole = bias.new_full((batch, heads, every * size, (every + 2) * size), -torch.inf)
    for block in range(every):
        rows = slice(block * size, (block + 1) * size)
        whole[:, :, rows, block * size : (block + 3) * size] = bias[:, block]
    return whole[:, :, :tokens, size : size + tokens]
