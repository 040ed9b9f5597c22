"""The patterns and the streams of a model, layer by layer, for experiments that ask what trained models look like.

for patterns in model_patterns("pocket", samples=4, max_tokens=64):       # [layer, head, token, token]
for streams in model_streams("pocket", samples=4, max_tokens=64):         # [depth, token, width]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.hf.anatomy.anatomy import anatomy
from attnscope.hf.loading.given import Given, loaded_for
from attnscope.hf.loading.material import (
    batches_for,
    forward_options,
    precision_and_place,
    refusing_what_does_not_run,
)
from attnscope.hf.loading.options import Loading, Sampling
from attnscope.hf.loading.quiet import quiet
from attnscope.hf.seeing.gradients import without_gradients
from attnscope.hf.seeing.intact import evaluating
from attnscope.hf.seeing.recompute import dense_pattern, one_sequence
from attnscope.hf.tapping.tap import Frame, tap
from attnscope.trace.frame import AttentionFrame, StreamFrame

Kept = tuple[int, Tensor]


def model_patterns(
    model: Given, *, samples: int, max_tokens: int, seed: int = 0
) -> Iterator[Float[Tensor, "layer head token token"]]:
    """For one sequence after the other, the self-attention of the first stack, in float64 and without padding."""

    def kept(frame: Frame) -> Kept | None:
        if not isinstance(frame, AttentionFrame) or frame.site != "self":
            return None
        real = frame.query_mask[0]
        return frame.layer, dense_pattern(one_sequence(frame.scores, 0))[0][:, real][..., real]

    return _layers(model, kept, samples, max_tokens, seed)


def model_streams(
    model: Given, *, samples: int, max_tokens: int, seed: int = 0
) -> Iterator[Float[Tensor, "depth token width"]]:
    """For one sequence after the other, the stream entering the first block and behind each, without padding."""

    def kept(frame: Frame) -> Kept | None:
        if not isinstance(frame, StreamFrame) or frame.site != "stream":
            return None
        return frame.layer, frame.stream[0, frame.token_mask[0]].clone()

    return _layers(model, kept, samples, max_tokens, seed)


def _layers(
    model: Given, kept: Callable[[Frame], Kept | None], samples: int, max_tokens: int, seed: int
) -> Iterator[Tensor]:
    loaded = loaded_for(model, None, Loading("float64", "cpu", False, seed))
    prepared = batches_for(loaded, None, Sampling(samples, max_tokens, batch_size=1, seed=seed))
    place = precision_and_place(loaded.model)[1]
    with refusing_what_does_not_run(loaded), without_gradients(), quiet():
        found = anatomy(loaded.model, prepared.batches[0].to(place).inputs)
    own = found.stacks[0].name
    seen: dict[int, Tensor] = {}

    def receive(frame: Frame) -> None:
        one = kept(frame) if frame.stack == own else None
        if one is not None:
            seen[one[0]] = one[1]

    for batch in prepared:
        with without_gradients(), quiet(), evaluating(loaded.model), tap(loaded.model, found, receive):
            loaded.model(**batch.to(place).inputs, **forward_options(loaded))
        yield torch.stack([one for _, one in sorted(seen.items())])
        seen.clear()
