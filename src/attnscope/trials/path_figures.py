"""Experiments B and C of arXiv:2103.03404: attention chained along random paths, and how long paths are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from attnscope.core.experiment import Desk, Figure, Point, median
from attnscope.models.nano import Config, Nano
from attnscope.trials.chains import chains
from attnscope.trials.path_counts import ARCHITECTURES, path_counts

Record = Mapping[str, Any]
RANDOM, TRAINED = "random, looks both ways", "pocket, trained, causal"


def chained(shape: tuple[int, int, int, int], paths: int, samples: int, seed: int, desk: Desk) -> list[dict[str, Any]]:
    """Relative residual of A_l_k ... A_l_1 by length, in a random model of this shape and in the trained pocket."""
    width, heads, layers, tokens = shape
    config = Config(vocab_size=1000, width=width, heads=heads, layers=layers, norm="post", max_tokens=tokens)
    ids = torch.randint(0, 1000, (samples, tokens), generator=torch.Generator().manual_seed(seed))
    drawn: dict[str, Any] = {"paths": paths, "seed": seed, "progress": desk.advance}
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
