"""Experiments B and C of arXiv:2103.03404: attention chained along random paths, and how long paths are."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import comb
from typing import Any, Unpack

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.core.experiment import Figure, Point, Session, median
from attnscope.core.progress import Advance, silent
from attnscope.data.frame import AttentionFrame
from attnscope.data.windows import Tokenizer
from attnscope.hf.anatomy.anatomy import anatomy
from attnscope.hf.intercepting.recompute import dense_pattern, one_sequence
from attnscope.hf.intercepting.restoring import evaluating, without_gradients
from attnscope.hf.loading.batches import Ready, Text, batches_for
from attnscope.hf.loading.load import Given, load
from attnscope.hf.loading.options import EvaluateOptions, Loading, Sampling, with_options
from attnscope.hf.loading.quiet import quiet
from attnscope.hf.loading.running import forward_options, precision_and_place, refusing_what_does_not_run
from attnscope.hf.tapping.tap import Frame, tap
from attnscope.matrix.residual import relative_residual
from attnscope.papers.models.nano import Config, Nano

# How many paths of each length a transformer has (arXiv:2103.03404, section 3.1), in exact integers.
#
# With skips, a path chooses in each of L layers one of H heads or the skip: C(L, k) H^k paths have length k, (H +
# 1)^L in all. Drawn blindly, a path has H/(H+1) L edges on average: nearly all paths are long. That short paths do
# most of the work is therefore a statement about what paths carry, not about how many there are.

ARCHITECTURES: dict[str, tuple[int, int]] = {  # layers, heads
    "DistilBERT": (6, 12),
    "BERT-base": (12, 12),
    "BERT-large": (24, 16),
    "GPT-3": (96, 96),
    "ViT-B": (12, 12),
    "T5-11B": (24, 128),
    "DeiT-T": (12, 3),
}


@dataclass(frozen=True)
class PathCounts:
    """`counts[k]` paths have k attention edges."""

    layers: int
    heads: int
    counts: tuple[int, ...]

    @property
    def total(self) -> int:
        return sum(self.counts)

    @property
    def shares(self) -> tuple[Fraction, ...]:
        return tuple(Fraction(count, self.total) for count in self.counts)

    @property
    def mean_length(self) -> Fraction:
        return sum((k * share for k, share in enumerate(self.shares)), start=Fraction(0))


def path_counts(layers: int, heads: int) -> PathCounts:
    if layers < 1 or heads < 1:
        raise RefusalError(f"{layers} layers of {heads} heads have no paths: give at least one of each.")
    return PathCounts(layers, heads, tuple(comb(layers, k) * heads**k for k in range(layers + 1)))


# Attention chained along random paths: how fast products of real patterns forget which token was which.
#
#     found = chains("pocket", paths=50)
#     found.median[11]                      # of paths through 12 layers
#
# Experiment B of arXiv:2103.03404. A path of length k chooses k layers and a head in each. Tokens pass the lowest layer
# first, so its pattern stands rightmost: P = A_(l_k) ... A_(l_1), l_1 < ... < l_k; the product the other way round is
# the pattern of no path. Reported is the relative residual of P, whose rows sum to one: 0 where all rows are equal,
# so that what the path writes is the same for every token.

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


@with_options(EvaluateOptions)
def chains(
    model: Given,
    corpus: Text | Ready | None = None,
    *,
    paths: int = 100,
    loading: Loading = Loading(dtype="float64"),
    sampling: Sampling = Sampling(samples=8, max_tokens=128),
    tokenizer: Tokenizer | None = None,
    progress: Advance = silent,
    **kwargs: Unpack[EvaluateOptions],
) -> Chains:
    """Draw `paths` paths of every length for each of `samples` sequences, in the model's own patterns."""
    loaded = load(model, loading=loading, tokenizer=tokenizer)
    prepared = batches_for(loaded, corpus, replace(sampling, batch_size=1))
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
                for length, values in chained_residuals(patterns, paths=paths, seed=loading.seed + done).items():
                    gathered.setdefault(length, []).extend(values)
            done += 1
        seen.clear()
    if not gathered:
        raise RefusalError("Every sequence is a single token, whose pattern has one row: give longer text.")
    columns = {length: np.array(values) for length, values in sorted(gathered.items())}
    median, low, high = (tuple(float(np.quantile(c, q)) for c in columns.values()) for q in (0.5, 0.1, 0.9))
    return Chains(loaded.name, tuple(columns), median, low, high, tuple(len(c) for c in columns.values()))


Record = Mapping[str, Any]
RANDOM, TRAINED = "random, looks both ways", "pocket, trained, causal"


def chained(
    shape: tuple[int, int, int, int], paths: int, samples: int, seed: int, session: Session
) -> list[dict[str, Any]]:
    """Relative residual of A_l_k ... A_l_1 by length, in a random model of this shape and in the trained pocket."""
    width, heads, layers, tokens = shape
    config = Config(vocab_size=1000, width=width, heads=heads, layers=layers, norm="post", max_tokens=tokens)
    ids = torch.randint(0, 1000, (samples, tokens), generator=torch.Generator().manual_seed(seed))
    drawn: dict[str, Any] = {"paths": paths, "seed": seed, "progress": session.advance}
    found = {
        RANDOM: chains(Nano(config, seed), {"input_ids": ids}, **drawn),
        TRAINED: chains("pocket", samples=samples, max_tokens=tokens, **drawn),
    }
    return [
        {"model": name, "seed": seed, "lengths": one.lengths, "median": one.median, "low": one.low, "high": one.high}
        for name, one in found.items()
    ]


def chain_figure(found: Sequence[Record]) -> Figure:
    rows = []
    for name in dict.fromkeys(one["model"] for one in found):
        seeds = [one for one in found if one["model"] == name]
        for k, length in enumerate(seeds[0]["lengths"]):
            low, high = min(one["low"][k] for one in seeds), max(one["high"][k] for one in seeds)
            y = median([one["median"][k] for one in seeds])
            rows.append(Point(length, y, name, low=low, high=high))
    caption = "Patterns multiplied along random (layer, head) paths: median, and a tenth to nine tenths."
    axes = ("length of the path", "relative residual")
    return Figure("B-chained", "B. Chained attention", caption, *axes, tuple(rows), log=True)


def count_figure() -> Figure:
    rows = [
        Point(k / layers, float(share) * layers, f"{name}, {heads} heads, {layers} layers")
        for name, (layers, heads) in ARCHITECTURES.items()
        if name != "ViT-B"  # the same as BERT-base
        for k, share in enumerate(path_counts(layers, heads).shares)
    ]
    caption = "Exact: C(L, k) H^k of (H + 1)^L paths have length k. ViT-B is as BERT-base."
    return Figure("C-lengths", "C. How long paths are", caption, "length / depth", "density of paths", tuple(rows))


def count_remark() -> str:
    """Arithmetic, not a claim that could fail: the mean length is L H / (H + 1)."""
    shares = {name: float(path_counts(*one).mean_length) / one[0] for name, one in ARCHITECTURES.items()}
    least = min(shares, key=shares.__getitem__)
    return (
        f"C is arithmetic: a path takes a head in H/(H + 1) of the layers, from {shares[least]:.2f} of them ({least}) "
        f"to {max(shares.values()):.2f}. That most paths are long says nothing about what they contribute."
    )
