"""What a language model loses where its sequences do not begin with BOS: its loss on a few windows, without and with.

The same tokens are predicted both times (all but the first of a window, which has nothing before it without BOS), so
the difference is what BOS alone does for them. A model that was trained with BOS loses much without it: its heads have
nowhere to sink.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.material import precision_and_place
from attnscope.hf.seeing.intact import evaluating
from attnscope.trace.batches import Batches

WINDOWS = 4
TOKENS = 64  # with BOS


def bos_loss(loaded: Loaded, prepared: Batches) -> dict[str, Any]:
    """Mean next-token loss in nats, for the provenance; nothing where BOS is there, or where there is none to put.

    Windows are read one at a time: a vocabulary is wide, and its logits for one window are enough to hold.
    """
    begins = prepared.beginning
    if begins is None or begins.begins or begins.token is None or loaded.kind != "causal":
        return {}
    chosen = list(_windows(prepared, min(TOKENS, loaded.positions or TOKENS) - 1))[:WINDOWS]
    losses = [tuple(_loss(loaded, ids, before) for before in (None, begins.token)) for ids in chosen if len(ids) > 1]
    known = [(without, put) for without, put in losses if without is not None and put is not None]
    if not known:
        return {}
    without, put = (sum(column) / len(known) for column in zip(*known, strict=True))
    return {"loss_without": without, "loss_with": put, "loss_windows": len(known)}


def _windows(prepared: Batches, tokens: int) -> Iterator[Int[Tensor, " token"]]:
    """The first real tokens of every sequence of text."""
    for batch in prepared:
        ids = batch.inputs.get("input_ids")
        if ids is None or ids.ndim != 2:
            return
        for number, row in enumerate(ids):
            yield (row if batch.mask is None else row[batch.mask[number]])[:tokens]


def _loss(loaded: Loaded, ids: Int[Tensor, " token"], before: int | None) -> float | None:
    """None where the model gives no logits over its vocabulary."""
    place = precision_and_place(loaded.model)[1]
    opening = ids.new_tensor([] if before is None else [before])
    read = torch.cat([opening, ids])[None].to(place)
    options = {"use_cache": False} if "use_cache" in loaded.accepts else {}
    with evaluating(loaded.model), torch.no_grad():
        logits = getattr(loaded.model(input_ids=read, **options), "logits", None)
    wanted = ids[1:].to(place)
    if not isinstance(logits, Tensor) or logits.shape[:2] != read.shape or logits.shape[-1] <= int(wanted.max()):
        return None
    said = logits[0, len(opening) : -1].float()
    found = float(torch.nn.functional.cross_entropy(said, wanted))
    return found if math.isfinite(found) else None
