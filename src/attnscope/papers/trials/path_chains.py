"""Experiments B and C of arXiv:2103.03404: attention chained along random paths, and the length of paths.

B. A path of length k chooses k blocks l_1 < ... < l_k and a head in each. Tokens pass the lowest block first, so its
pattern is the rightmost factor of P = A_(l_k) ... A_(l_1); no path has the product in the other order. We measure the
relative residual of P, whose rows sum to one: it is 0 if all rows are equal, so that every token gets the same output.

C. With skips, a path chooses in each of L blocks one of H heads or the skip: C(L, k) H^k paths have length k, (H + 1)^L
in all (section 3.1). A random path has L H/(H+1) attention edges on average, so nearly all paths are long. That short
paths do most of the work is therefore a statement about how much paths contribute, not about how many there are.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import comb
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.core.experiment import Figure, Point, Session, median
from attnscope.core.progress import Advance, silent
from attnscope.hf.loading.load import Given, Ready, Text
from attnscope.matrix.residual import relative_residual
from attnscope.papers.models.nano import Config, Nano
from attnscope.papers.trials.curves import Rows, select
from attnscope.papers.trials.model_patterns import model_patterns

ARCHITECTURES: dict[str, tuple[int, int]] = {  # numbers of blocks and of heads
    "DistilBERT": (6, 12),
    "BERT-base": (12, 12),
    "BERT-large": (24, 16),
    "GPT-3": (96, 96),
    "ViT-B": (12, 12),
    "T5-11B": (24, 128),
    "DeiT-T": (12, 3),
}
RANDOM, TRAINED = "random, looks both ways", "pocket, trained, causal"


@dataclass(frozen=True)
class PathCounts:
    """The number of paths by length: `counts[k]` paths have k attention edges."""

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
        raise RefusalError(f"{layers} blocks of {heads} heads have no paths: give at least one of each.")
    return PathCounts(layers, heads, tuple(comb(layers, k) * heads**k for k in range(layers + 1)))


@dataclass(frozen=True)
class Chains:
    """Quantiles of the relative residual of random paths, by length, over sequences and paths."""

    lengths: tuple[int, ...]
    median: tuple[float, ...]
    low: tuple[float, ...]  # 10th percentile
    high: tuple[float, ...]  # 90th percentile
    n: tuple[int, ...]


def path_pattern(patterns: Sequence[Float[Tensor, "token token"]]) -> Float[Tensor, "token token"]:
    """Return the product A_k ... A_1 of patterns A_1, ..., A_k, given in the order in which tokens pass them."""
    if not patterns:
        raise RefusalError("A path without attention has no pattern: give at least one block.")
    product = patterns[0]
    for pattern in patterns[1:]:
        product = pattern @ product
    return product


def chained_residuals(
    patterns: Float[Tensor, "layer head token token"], *, paths: int, seed: int = 0
) -> dict[int, list[float]]:
    """Return, for every length, the relative residuals of random paths through the patterns of one sequence."""
    layers, heads = patterns.shape[:2]
    draw = random.Random(seed)
    residuals: dict[int, list[float]] = {}
    for length in range(1, layers + 1):
        products = [
            path_pattern(
                [patterns[layer, draw.randrange(heads)] for layer in sorted(draw.sample(range(layers), length))]
            )
            for _ in range(paths)
        ]
        residuals[length] = relative_residual(torch.stack(products)).tolist()
    return residuals


def chains(
    model: Given,
    corpus: Text | Ready | None = None,
    *,
    paths: int = 100,
    samples: int = 8,
    max_tokens: int | None = 128,
    seed: int = 0,
    progress: Advance = silent,
) -> Chains:
    """Draw `paths` paths of every length for each sequence, and measure the residual of their chained patterns."""
    residuals: dict[int, list[float]] = {}
    sequences = model_patterns(model, corpus, samples=samples, max_tokens=max_tokens, seed=seed)
    for done, patterns in enumerate(sequences):
        progress("chaining attention", done, samples)
        if patterns.shape[-1] > 1:
            for length, values in chained_residuals(patterns, paths=paths, seed=seed + done).items():
                residuals.setdefault(length, []).extend(values)
    if not residuals:
        raise RefusalError("Every sequence is a single token, whose pattern has one row: give longer text.")
    columns = {length: np.array(values) for length, values in sorted(residuals.items())}
    middle, low, high = (tuple(float(np.quantile(c, q)) for c in columns.values()) for q in (0.5, 0.1, 0.9))
    return Chains(tuple(columns), middle, low, high, tuple(len(c) for c in columns.values()))


def chained(
    shape: tuple[int, int, int, int], paths: int, samples: int, seed: int, session: Session
) -> list[dict[str, Any]]:
    """Return the relative residual of chained attention by length, in a random model of this shape and in pocket."""
    width, heads, layers, tokens = shape
    config = Config(vocab_size=1000, width=width, heads=heads, layers=layers, norm="post", max_tokens=tokens)
    ids = torch.randint(0, 1000, (samples, tokens), generator=torch.Generator().manual_seed(seed))
    options: dict[str, Any] = {"paths": paths, "seed": seed, "progress": session.advance}
    models = {
        RANDOM: chains(Nano(config, seed), {"input_ids": ids}, **options),
        TRAINED: chains("pocket", samples=samples, max_tokens=tokens, **options),
    }
    return [
        {
            "model": name,
            "seed": seed,
            "lengths": result.lengths,
            "median": result.median,
            "low": result.low,
            "high": result.high,
        }
        for name, result in models.items()
    ]


def chain_figure(rows: Rows) -> Figure:
    points = []
    for name in dict.fromkeys(row["model"] for row in rows):
        seeds = select(rows, model=name)
        for k, length in enumerate(seeds[0]["lengths"]):
            low, high = min(row["low"][k] for row in seeds), max(row["high"][k] for row in seeds)
            points.append(Point(length, median([row["median"][k] for row in seeds]), name, low=low, high=high))
    caption = "Patterns multiplied along random (block, head) paths: median, and a tenth to nine tenths."
    axes = ("length of the path", "relative residual")
    return Figure("B-chained", "B. Chained attention", caption, *axes, tuple(points), log=True)


def count_figure() -> Figure:
    points = [
        Point(k / layers, float(share) * layers, f"{name}, {heads} heads, {layers} blocks")
        for name, (layers, heads) in ARCHITECTURES.items()
        if name != "ViT-B"  # it has the same counts as BERT-base
        for k, share in enumerate(path_counts(layers, heads).shares)
    ]
    caption = "Exact: C(L, k) H^k of (H + 1)^L paths have length k. ViT-B is as BERT-base."
    return Figure("C-lengths", "C. Length of paths", caption, "length / depth", "density of paths", tuple(points))


def count_remark() -> str:
    """Return the remark on path lengths. The mean length L H / (H + 1) is arithmetic, so it is not a claim."""
    shares = {name: float(path_counts(*sizes).mean_length) / sizes[0] for name, sizes in ARCHITECTURES.items()}
    least = min(shares, key=shares.__getitem__)
    return (
        f"C is arithmetic: a path uses a head in H/(H + 1) of the blocks, from {shares[least]:.2f} of them ({least}) "
        f"to {max(shares.values()):.2f}. That most paths are long says nothing about what they contribute."
    )
