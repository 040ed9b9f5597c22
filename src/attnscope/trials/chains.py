"""Attention chained along random paths: how fast products of real patterns forget which token was which.

    found = chains("pocket", paths=50)
    found.median[11]                      # of paths through 12 layers

Experiment B of arXiv:2103.03404. A path of length k chooses k layers and a head in each. Tokens pass the lowest layer
first, so its pattern stands rightmost: P = A_(l_k) ... A_(l_1), l_1 < ... < l_k; the product the other way round is the
pattern of no path. Reported is the relative residual of P, whose rows sum to one: 0 where all rows are equal, so that
what the path writes is the same for every token.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.core.progress import Advance, silent
from attnscope.hf.anatomy.anatomy import anatomy
from attnscope.hf.loading.given import Given, loaded_for
from attnscope.hf.loading.material import (
    Ready,
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
from attnscope.matrix.residual import relative_residual
from attnscope.trace.frame import AttentionFrame
from attnscope.trace.windows import Tokenizer

Patterns = Float[Tensor, "layer head token token"]


@dataclass(frozen=True)
class Chains:
    """Relative residual of the patterns of random paths, for lengths 1..layers, over sequences and paths."""

    model: str
    lengths: tuple[int, ...]
    median: tuple[float, ...]
    low: tuple[float, ...]  # 10th percentile
    high: tuple[float, ...]  # 90th
    n: tuple[int, ...]


def path_pattern(patterns: Sequence[Float[Tensor, "token token"]]) -> Float[Tensor, "token token"]:
    """A_k ... A_1 of patterns given in the order in which tokens pass them."""
    if not patterns:
        raise RefusalError("A path without attention has no pattern: give at least one layer.")
    product = patterns[0]
    for pattern in patterns[1:]:
        product = pattern @ product
    return product


def chained_residuals(patterns: Patterns, *, paths: int, seed: int = 0) -> dict[int, list[float]]:
    """For every length, the relative residuals of `paths` random paths through the patterns of one sequence."""
    layers, heads = patterns.shape[:2]
    draw = random.Random(seed)
    answer: dict[int, list[float]] = {}
    for length in range(1, layers + 1):
        products = [
            path_pattern(
                [patterns[layer, draw.randrange(heads)] for layer in sorted(draw.sample(range(layers), length))]
            )
            for _ in range(paths)
        ]
        answer[length] = relative_residual(torch.stack(products)).tolist()
    return answer


def chains(
    model: Given,
    corpus: Text | Ready | None = None,
    *,
    paths: int = 100,
    samples: int = 8,
    max_tokens: int | None = 128,
    random_init: bool = False,
    seed: int = 0,
    dtype: str = "float64",
    device: str = "cpu",
    tokenizer: Tokenizer | None = None,
    allow_pickle: bool = False,
    trust_remote_code: bool = False,
    progress: Advance = silent,
) -> Chains:
    """Draw `paths` paths of every length for each of `samples` sequences, in the model's own patterns."""
    loaded = loaded_for(model, tokenizer, Loading(dtype, device, random_init, seed, allow_pickle, trust_remote_code))
    prepared = batches_for(loaded, corpus, Sampling(samples, max_tokens, batch_size=1, seed=seed))
    place = precision_and_place(loaded.model)[1]
    with refusing_what_does_not_run(loaded), without_gradients(), quiet():
        found = anatomy(loaded.model, prepared.batches[0].to(place).inputs)
    own = found.stacks[0].name
    gathered: dict[int, list[float]] = {}
    seen: dict[tuple[int, int], Tensor] = {}

    def receive(frame: Frame) -> None:
        if isinstance(frame, AttentionFrame) and (frame.stack, frame.site) == (own, "self"):
            for index, real in enumerate(frame.query_mask):
                seen[index, frame.layer] = dense_pattern(one_sequence(frame.scores, index))[0][:, real][..., real]

    done = 0
    for batch in prepared:
        progress("chaining attention", done, prepared.samples)
        with without_gradients(), quiet(), evaluating(loaded.model), tap(loaded.model, found, receive):
            loaded.model(**batch.to(place).inputs, **forward_options(loaded))
        for index in range(len(batch)):
            patterns = torch.stack([p for (row, _), p in sorted(seen.items(), key=lambda i: i[0]) if row == index])
            if patterns.shape[-1] > 1:
                for length, values in chained_residuals(patterns, paths=paths, seed=seed + done).items():
                    gathered.setdefault(length, []).extend(values)
            done += 1
        seen.clear()
    if not gathered:
        raise RefusalError("Every sequence is a single token, whose pattern has one row: give longer text.")
    columns = {length: np.array(values) for length, values in sorted(gathered.items())}
    median, low, high = (tuple(float(np.quantile(c, q)) for c in columns.values()) for q in (0.5, 0.1, 0.9))
    return Chains(loaded.name, tuple(columns), median, low, high, tuple(len(c) for c in columns.values()))
