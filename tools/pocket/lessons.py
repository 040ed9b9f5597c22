"""The batch and the learning rate of every training step of pocket.

In the first steps ("school"), every window repeats a few words, most of them in random order, so that the next word can
only be predicted by looking back at what followed it before. Such repetition is rare in text: 2,600 steps of text alone
gave no induction head. After school, windows are text, and some repeat.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Int
from torch import Tensor

from tools.pocket.params import Params


def windows(stream: Int[Tensor, " token"], starts: Int[Tensor, " row"], context: int) -> Int[Tensor, "row context"]:
    """Return rows of BOS followed by context - 1 tokens of the stream."""
    rows = stream[starts[:, None] + torch.arange(context - 1)]
    return torch.nn.functional.pad(rows, (1, 0), value=0)


def training_batch(stream: Int[Tensor, " token"], step: int, params: Params) -> Int[Tensor, "row context"]:
    """Return the batch of a step. It depends only on (seed, step), so that a resumed run sees the same batches."""
    in_school = step < params.school
    context = params.school_context if in_school else params.context
    shuffled = params.school_shuffled if in_school else params.shuffled
    repeated = 1 - params.school_shuffled if in_school else params.repeated
    random = torch.Generator().manual_seed(params.seed * 1_000_003 + step)
    starts = torch.randint(len(stream) - context, (params.batch,), generator=random)
    rows = windows(stream, starts, context)
    for row, chance in zip(rows, torch.rand(params.batch, generator=random).tolist(), strict=True):
        if chance < shuffled + repeated:
            row[1:] = _said_again(row[1:].clone(), chance < shuffled, params, random)
    return rows


def _said_again(
    words: Int[Tensor, " token"], shuffled: bool, params: Params, random: torch.Generator
) -> Int[Tensor, " token"]:
    """Repeat the first few words of a window, or a few in random order (every other time, any tokens of the
    vocabulary). Their number is uniform on a logarithmic scale."""
    most = max(len(words) // 3, params.shortest)
    count = int(params.shortest * (most / params.shortest) ** float(torch.rand((), generator=random)))
    unit = words[:count]
    if shuffled:
        unit = words[torch.randperm(len(words), generator=random)[:count]]
        if float(torch.rand((), generator=random)) < 0.5:
            unit = torch.randint(2, params.vocab, (count,), generator=random)
    return unit.repeat(1 + len(words) // count)[: len(words)]


def rate(step: int, params: Params) -> float:
    """Return the learning rate: low in school, so that the planted head survives; then high enough for spikes."""
    if step < params.school:
        return params.school_rate * min(1.0, (step + 1) / params.school_warmup)
    since, whole = step - params.school, params.horizon - params.school
    if since < params.warmup:
        return params.school_rate + (params.peak_rate - params.school_rate) * (since + 1) / params.warmup
    progress = (since - params.warmup) / (whole - params.warmup)
    cosine = params.last_rate + (params.peak_rate - params.last_rate) * 0.5 * (1 + math.cos(math.pi * progress))
    return cosine * min(1.0, (params.steps - step) / params.cooldown)
