"""Is an explanation true to the model? Take tokens away in the order it gives, and see what becomes of the answer.

    positive     the tokens that did most go first: the answer should fall at once, its area is small
    negative     those that did least go first: the answer should stay, its area is large
    comprehensiveness, sufficiency (arXiv:1911.03429): what the answer loses without the most important tokens, and with
                 nothing but them, averaged over BINS
    soft         the last two with tokens kept in part, and as much in all for every method (`softening`)

A token that is taken away becomes one that says nothing (`baseline`). Such inputs are ones that the model never saw
(arXiv:1806.10758): areas say which of two methods is better on one model, not how well a model is explained.

An answer that grows beyond what it was counts as whole (as in arXiv:2010.04736): the probability of an unsure answer
can grow tenfold by luck, and a few such texts would decide the mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.explaining.softening import soft_masks

STEPS = 10  # shares of the tokens that are taken away: 0, 1/STEPS, ..., 1
BINS = (0.05, 0.1, 0.2, 0.5)
AT_ONCE = 16  # answers that are asked for together

Vectors = dict[str, Float[Tensor, "token width"]]
Ask = Callable[[dict[str, Float[Tensor, "batch token width"]]], Float[Tensor, " batch"]]


@dataclass(frozen=True)
class Perturbed:
    """What the answer becomes, as shares of what it was, 1 at most."""

    positive: float
    negative: float
    comprehensiveness: float
    sufficiency: float
    soft_comprehensiveness: float
    soft_sufficiency: float
    falling: tuple[float, ...]  # the answer after each step, the most important first
    staying: tuple[float, ...]  # and the least important first


class NoAnswerError(RefusalError):
    """The answer is 0 from the start: it has no shares, and nothing that goes could lower it."""


def averaged(found: Sequence[Perturbed]) -> Perturbed:
    """The mean of several, field by field and step by step."""

    def mean(values: Sequence[Any]) -> Any:
        if isinstance(values[0], tuple):
            return tuple(map(mean, zip(*values, strict=True)))
        return math.fsum(values) / len(values)

    return Perturbed(*(mean([getattr(one, name.name) for one in found]) for name in fields(Perturbed)))


@torch.no_grad()
def perturbed(
    ask: Ask,
    embedding: Vectors,
    baseline: Vectors,
    scores: dict[str, Float[Tensor, " token"]],
    seed: int = 0,
) -> Perturbed:
    """Areas under both curves, and what is lost without and with the most important tokens. `ask` gives the answer, a
    number that is 0 or more, such as a probability. Of equal tokens the one that was read first goes first."""
    stacks = [stack for stack in embedding if stack in scores]
    numbers = torch.cat([scores[stack] for stack in stacks])
    order = numbers.argsort(descending=True, stable=True)
    count = len(order)
    areas = [round(step * count / STEPS) for step in range(STEPS + 1)]
    bins = [max(1, round(share * count)) for share in BINS]
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(count, device=order.device))
    hard = [rank >= gone for gone in areas] + [rank < count - gone for gone in areas]
    hard += [rank >= gone for gone in bins] + [rank < left for left in bins]
    soft = soft_masks(numbers, max(embedding[stack].shape[-1] for stack in stacks), seed)
    kept = [*(mask[:, None] for mask in hard), *soft[1].to(order.device), *soft[0].to(order.device)]
    found = torch.cat(list(_answers(ask, embedding, baseline, stacks, kept)))
    whole = float(found[0])
    if not whole > 0:
        raise NoAnswerError("The answer is 0 before anything is taken away: choose another text.")
    shares = (found / whole).clamp_max(1.0).tolist()
    taken = iter(shares)
    positive, negative = ([next(taken) for _ in areas] for _ in range(2))
    without, alone = ([next(taken) for _ in bins] for _ in range(2))
    soft_without, soft_alone = ([next(taken) for _ in side] for side in soft)
    return Perturbed(
        positive=_area(positive),
        negative=_area(negative),
        comprehensiveness=_lost(without),
        sufficiency=_lost(alone),
        soft_comprehensiveness=_lost(soft_without),
        soft_sufficiency=_lost(soft_alone),
        falling=tuple(positive),
        staying=tuple(negative),
    )


def _answers(
    ask: Ask, embedding: Vectors, baseline: Vectors, stacks: list[str], kept: list[Bool[Tensor, "token entries"]]
) -> Iterator[Float[Tensor, " rows"]]:
    """The answer with only what is kept, for every mask: a column for whole tokens, or one for every entry."""
    lengths = [len(embedding[stack]) for stack in stacks]
    for begin in range(0, len(kept), AT_ONCE):
        some = kept[begin : begin + AT_ONCE]
        pieces = [dict(zip(stacks, torch.split(mask, lengths), strict=True)) for mask in some]
        yield ask(
            {
                stack: torch.stack(
                    [
                        torch.where(piece[stack][:, : own.shape[-1]], own, baseline[stack]) if stack in piece else own
                        for piece in pieces
                    ]
                )
                for stack, own in embedding.items()
            }
        )


def _lost(shares: list[float]) -> float:
    return 1 - sum(shares) / len(shares)


def _area(values: list[float]) -> float:
    """Under a curve over equal steps, as a share of the whole width."""
    return (sum(values) - (values[0] + values[-1]) / 2) / (len(values) - 1)
