"""Yield the patterns or the streams of a trained model, one sequence at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.data.frame import AttentionFrame, StreamFrame
from attnscope.hf.anatomy.anatomy import anatomy
from attnscope.hf.intercepting.masks import dense_pattern, one_sequence
from attnscope.hf.intercepting.restoring import evaluating, without_gradients
from attnscope.hf.loading.load import (
    Given,
    Ready,
    Text,
    batches_for,
    forward_options,
    load,
    precision_and_place,
    refusing_what_does_not_run,
)
from attnscope.hf.loading.options import Sampling
from attnscope.hf.loading.quiet import quiet
from attnscope.hf.tapping.tap import Frame, tap


def model_patterns(
    model: Given, corpus: Text | Ready | None = None, *, samples: int, max_tokens: int | None, seed: int = 0
) -> Iterator[Float[Tensor, "layer head token token"]]:
    """Yield the self-attention patterns of the first stack for each sequence, in float64 and without padding."""

    def rows(frame: Frame) -> list[Tensor] | None:
        if not isinstance(frame, AttentionFrame) or frame.site != "self":
            return None
        patterns = (dense_pattern(one_sequence(frame.scores, row))[0] for row in range(len(frame.query_mask)))
        return [pattern[:, real][..., real] for pattern, real in zip(patterns, frame.query_mask, strict=True)]

    return _by_block(model, corpus, Sampling(samples, max_tokens, batch_size=1, seed=seed), rows)


def model_streams(
    model: Given, corpus: Text | Ready | None = None, *, samples: int, max_tokens: int | None, seed: int = 0
) -> Iterator[Float[Tensor, "depth token width"]]:
    """Yield the stream before the first block and after each block for each sequence, without padding."""

    def rows(frame: Frame) -> list[Tensor] | None:
        if not isinstance(frame, StreamFrame) or frame.site != "stream":
            return None
        return [stream[real].clone() for stream, real in zip(frame.stream, frame.token_mask, strict=True)]

    return _by_block(model, corpus, Sampling(samples, max_tokens, batch_size=1, seed=seed), rows)


def _by_block(
    model: Given, corpus: Text | Ready | None, sampling: Sampling, rows: Callable[[Frame], list[Tensor] | None]
) -> Iterator[Tensor]:
    loaded = load(model, dtype="float64", seed=sampling.seed)
    prepared = batches_for(loaded, corpus, sampling)
    device = precision_and_place(loaded.model)[1]
    with refusing_what_does_not_run(loaded), without_gradients(), quiet():
        parts = anatomy(loaded.model, prepared.batches[0].to(device).inputs)
    by_block: dict[int, list[Tensor]] = {}

    def receive(frame: Frame) -> None:
        tensors = rows(frame) if frame.stack == parts.stacks[0].name else None
        if tensors is not None:
            by_block[frame.layer] = tensors

    for batch in prepared:
        with without_gradients(), quiet(), evaluating(loaded.model), tap(loaded.model, parts, receive):
            loaded.model(**batch.to(device).inputs, **forward_options(loaded))
        for row in range(len(batch)):
            yield torch.stack([by_block[layer][row] for layer in sorted(by_block)])
        by_block.clear()
