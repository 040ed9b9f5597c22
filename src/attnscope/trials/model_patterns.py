"""The patterns of a model, layer by layer, for experiments that ask what trained attention looks like.

for patterns in model_patterns("pocket", samples=4, max_tokens=64):       # [layer, head, token, token]
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.progress import Advance, silent
from attnscope.hf.anatomy.anatomy import anatomy
from attnscope.hf.loading.given import Given, loaded_for
from attnscope.hf.loading.material import (
    Text,
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
from attnscope.trace.frame import AttentionFrame


def model_patterns(
    model: Given,
    corpus: Text | None = None,
    *,
    samples: int,
    max_tokens: int,
    seed: int = 0,
    random_init: bool = False,
    progress: Advance = silent,
) -> Iterator[Float[Tensor, "layer head token token"]]:
    """For one sequence after the other, the self-attention of the first stack, in float64 and without padding."""
    loaded = loaded_for(model, None, Loading("float64", "cpu", random_init, seed))
    prepared = batches_for(loaded, corpus, Sampling(samples, max_tokens, batch_size=1, seed=seed))
    place = precision_and_place(loaded.model)[1]
    with refusing_what_does_not_run(loaded), without_gradients(), quiet():
        found = anatomy(loaded.model, prepared.batches[0].to(place).inputs)
    own = found.stacks[0].name
    seen: dict[int, Tensor] = {}

    def receive(frame: Frame) -> None:
        if isinstance(frame, AttentionFrame) and (frame.stack, frame.site) == (own, "self"):
            real = frame.query_mask[0]
            seen[frame.layer] = dense_pattern(one_sequence(frame.scores, 0))[0][:, real][..., real]

    for done, batch in enumerate(prepared):
        progress("reading patterns", done, prepared.samples)
        with without_gradients(), quiet(), evaluating(loaded.model), tap(loaded.model, found, receive):
            loaded.model(**batch.to(place).inputs, **forward_options(loaded))
        yield torch.stack([pattern for _, pattern in sorted(seen.items())])
        seen.clear()
