"""Sparse blocks of keys (BigBird, Zaheer et al. 2020, arXiv:2007.14062, appendix D), read as one call.

Tokens stand in blocks; the rows of a block see the blocks beside it, the first and the last one, and random ones. The
first and the last block see everything. Outside training the library draws no random blocks: it takes the first block
for each of them, beside the first block that is there already. A key that is listed m times counts m times,

    A_ij = m_ij exp(s_ij) / sum_l m_il exp(s_il) = softmax_j(s_ij + ln m_ij),

which is a bias on the logits, and minus infinity where a key is not listed at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.hf.seeing.sighting import Sighting
from attnscope.hf.seeing.tensors import by_head, projected
from attnscope.matrix.scores import Scores
from attnscope.trace.frame import PassedOn


def sparse_blocks(module: Any, given: Mapping[str, Any], result: Any, _: Sequence[Tensor]) -> Iterator[Sighting]:
    if module.training:
        raise RefusalError(
            f"{type(module).__name__} draws random blocks anew in every forward pass of training: measure it in "
            "evaluation mode."
        )
    tokens: Float[Tensor, "batch token width"] = given["hidden_states"]
    heads, size = module.num_attention_heads, module.block_size
    query, key, value = (projected(part, tokens, heads) for part in (module.query, module.key, module.value))
    times = how_often_listed(tokens.shape[1] // size, module.num_random_blocks).to(tokens.device)
    each = times.repeat_interleave(size, 0).repeat_interleave(size, 1)
    yield Sighting(
        Scores(
            query.detach(),
            key.detach(),
            scale=query.shape[-1] ** -0.5,
            allowed=given["to_mask"].bool(),
            bias=each.to(tokens.dtype).log()[None, None],
        ),
        value.detach(),
        by_head(result[0].detach(), heads),
        "pieces",
        (query, value),
        passed_on=PassedOn(result[0], lambda output: by_head(output, heads)),
    )


def how_often_listed(blocks: int, random: int) -> Float[Tensor, "block block"]:
    """How many times the rows of every block see the keys of every other."""
    times = torch.zeros(blocks, blocks)
    for row in range(1, blocks - 1):
        for beside in {0, row - 1, row, row + 1, blocks - 1}:
            times[row, beside] += 1
        times[row, 0] += random
    times[0] = times[-1] = 1
    return times
