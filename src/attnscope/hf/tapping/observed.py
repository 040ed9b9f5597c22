"""Turn the attention of a head on a text into a pattern: the k largest weights of every query, scaled to sum to 1.

    pattern = observed_pattern(load("pocket"), "The dog chased its own tail.", block=2, head=1, k=4)

The attention is observed with the tap. The pattern is causal if the head is, so that a head compiled from it can rely
on the causal mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.data.batches import batches
from attnscope.data.formats import refuse_half_characters
from attnscope.data.frame import AttentionFrame
from attnscope.data.windows import Tokenizer, Window, Windows
from attnscope.heads.pattern import Pattern
from attnscope.hf.anatomy.anatomy import Anatomy, Site, anatomy
from attnscope.hf.anatomy.example import Batch, run
from attnscope.hf.intercepting.masks import dense_pattern, one_sequence
from attnscope.hf.intercepting.restoring import evaluating, looking_at, without_gradients
from attnscope.hf.loading.in_memory import refuse_broken_weights
from attnscope.hf.loading.load import Loaded, load
from attnscope.hf.tapping.tap import Frame, tap
from attnscope.matrix.scores import Scores


def observed_pattern(
    model: Loaded | nn.Module,
    text: str | Mapping[str, Any],
    *,
    block: int,
    head: int,
    k: int,
    tokenizer: Tokenizer | None = None,
    stack: str | None = None,
) -> Pattern:
    """Return the `k` largest weights per query of one head on `text`, or on a ready batch of one sequence."""
    loaded = load(model, tokenizer=tokenizer, cast=False)
    refuse_broken_weights(loaded)
    batch = _batch(loaded, text) if isinstance(text, str) else dict(text)
    if k < 1:
        raise RefusalError(f"A pattern with {k} keys for each query is empty: pass a k of 1 or more.")
    with looking_at(loaded.model), without_gradients(), evaluating(loaded.model):
        found = anatomy(loaded.model, batch)
        site = found.self_attention_at(block, head, stack)
        frame = observed_frame(loaded.model, found, site, batch)
        if frame.query_mask.shape[0] != 1:
            raise RefusalError(
                f"The batch holds {frame.query_mask.shape[0]} sequences, and a pattern needs one: give a batch of a "
                "single sequence."
            )
        real = frame.query_mask[0].nonzero().flatten()
        if len(real) < 2:
            raise RefusalError(
                f"The text is a single token for {loaded.name}, which can only attend to itself: give more text."
            )
        if k > len(real):
            raise RefusalError(
                f"The text has {len(real)} tokens, so no query has {k} keys: pass a k of {len(real)} or less."
            )
        attention = dense_pattern(one_head(frame.scores, head))[0, 0][real][:, real]
        shares, keys = attention.topk(k, dim=-1)
    rows = np.repeat(np.arange(len(real)), k)
    weights, columns = shares.double().flatten().cpu().numpy(), keys.flatten().cpu().numpy()
    kept = weights > 0  # early queries of a causal head see fewer than k keys
    return Pattern.of(
        rows[kept],
        columns[kept],
        weights[kept],
        n=len(real),
        causal=frame.scores.causal or site.causal,
        normalise=True,
        name=f"{loaded.name}, {'' if stack is None else stack + ' '}block {block}, head {head}, top {k}",
    )


def _batch(loaded: Loaded, text: str) -> dict[str, Tensor]:
    if loaded.tokenizer is None:
        raise RefusalError(
            f"{loaded.name} has no tokenizer, so it cannot read text: pass tokenizer=, or a batch of one sequence."
        )
    refuse_half_characters(text, "The text")
    ids = tuple(loaded.tokenizer(text)["input_ids"])
    if loaded.positions is not None and len(ids) > loaded.positions:
        raise RefusalError(
            f"The text has {len(ids)} tokens and {loaded.name} reads {loaded.positions} at most: shorten the text."
        )
    if not ids:
        raise RefusalError("The text is empty: give at least two tokens.")
    window = Windows("text", "", (Window(ids),), len(ids))
    only = next(iter(batches(window, decoder_start=loaded.decoder_start, accepts=loaded.accepts)))
    device = next(loaded.model.parameters()).device
    return {name: tensor.to(device) for name, tensor in only.inputs.items()}


def observed_frame(model: nn.Module, found: Anatomy, site: Site, batch: Batch) -> AttentionFrame:
    """Run the model and return what the tap sees of one attention."""
    caught: list[AttentionFrame] = []

    def receive(frame: Frame) -> None:
        if isinstance(frame, AttentionFrame) and (frame.stack, frame.site, frame.layer) == site.key:
            caught.append(frame)

    with tap(model, found, receive):
        run(model, batch)
    return caught[0]


def one_head(scores: Scores, head: int) -> Scores:
    """Return the scores of one head of the first sequence."""
    first, shared, own = one_sequence(scores, 0), head // scores.sharing, slice(head, head + 1)

    def of_head(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor[:, own] if tensor.shape[1] > 1 else tensor

    some: dict[str, Any] = {name: of_head(getattr(first, name)) for name in ("allowed", "bias", "lse", "pattern")}
    sinks = None if first.sinks is None else first.sinks[own]
    return replace(first, query=first.query[:, own], key=first.key[:, shared : shared + 1], sinks=sinks, **some)
