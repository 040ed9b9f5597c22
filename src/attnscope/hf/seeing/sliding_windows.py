"""Sliding windows with global tokens (Longformer, Beltagy et al. 2020, arXiv:2004.05150, section 3), read as one call.

With w tokens on either side, key j is seen by query i where |i - j| <= w or j is global, and j is no padding:

    A_ij = softmax_j(q_i . k_j / sqrt(d)) over those keys.

A global key inside the window counts once: the model takes it out of the window. Rows of global queries are not of
this pattern: they see every key, with projections of their own (query_global, key_global, value_global), and are a
second call of as many queries as the sequence with most of them has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.hf.seeing.sighting import Sighting
from attnscope.hf.seeing.tensors import by_head, projected
from attnscope.matrix.scores import Scores
from attnscope.trace.frame import PassedOn


def sliding_windows(module: Any, given: Mapping[str, Any], result: Any, _: Sequence[Tensor]) -> Iterator[Sighting]:
    tokens: Float[Tensor, "batch token width"] = given["hidden_states"]
    real = ~given["is_index_masked"]
    globally = given["is_index_global_attn"] if given["is_global_attn"] else torch.zeros_like(real)
    mixed = by_head(result[0].detach(), module.num_heads)
    query, key, value = (projected(part, tokens, module.num_heads) for part in (module.query, module.key, module.value))
    where = torch.arange(tokens.shape[1], device=tokens.device)
    near = (where[:, None] - where).abs() <= module.one_sided_attn_window_size
    allowed = (near | globally[:, None, None, :]) & real[:, None, None, :]
    yield Sighting(
        Scores(query.detach(), key.detach(), scale=module.head_dim**-0.5, allowed=allowed),
        value.detach(),
        mixed,
        "pieces",
        (query, value),
        passed_on=PassedOn(result[0], lambda output: by_head(output, module.num_heads) * ~globally[:, :, None, None]),
        rows=real & ~globally,
    )
    if bool(globally.any()):
        yield _global_rows(module, tokens, real, globally, result[0])


def _global_rows(
    module: Any,
    tokens: Float[Tensor, "batch token width"],
    real: Bool[Tensor, "batch token"],
    globally: Bool[Tensor, "batch token"],
    output: Float[Tensor, "batch token width"],
) -> Sighting:
    most = int(globally.sum(dim=1).max())
    places = globally.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :most]  # global tokens first
    rows = globally.gather(1, places)
    asking = tokens.gather(1, places[:, :, None].expand(-1, -1, tokens.shape[2]))
    query = projected(module.query_global, asking, module.num_heads)
    key, value = (projected(part, tokens, module.num_heads) for part in (module.key_global, module.value_global))

    def picked(output: Float[Tensor, "batch token width"]) -> Float[Tensor, "batch row head dim"]:
        mixed = by_head(output, module.num_heads)
        return mixed.gather(1, places[:, :, None, None].expand(-1, -1, *mixed.shape[2:]))

    scores = Scores(query.detach(), key.detach(), scale=module.head_dim**-0.5, allowed=real[:, None, None, :])
    return Sighting(
        scores,
        value.detach(),
        picked(output.detach()),
        "pieces",
        (query, value),
        passed_on=PassedOn(output, picked),
        rows=rows,
    )
