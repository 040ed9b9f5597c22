"""Is an explanation true to the model? Take tokens away in the order it gives, and see what becomes of the answer.

    positive     the tokens that did most go first: the answer should fall at once, its area is small
    negative     those that did least go first: the answer should stay, its area is large
    comprehensiveness, sufficiency (arXiv:1911.03429): what the answer loses without the most important tokens, and with
                 nothing but them, averaged over BINS

A token that is taken away becomes one that says nothing (`baseline`). Such inputs are ones that the model never saw
(arXiv:1806.10758): areas say which of two methods is better on one model, not how well a model is explained.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

STEPS = 10  # shares of the tokens that are taken away: 0, 1/STEPS, ..., 1
BINS = (0.05, 0.1, 0.2, 0.5)
AT_ONCE = 16  # answers that are asked for together

Vectors = dict[str, Float[Tensor, "token width"]]
Ask = Callable[[dict[str, Float[Tensor, "batch token width"]]], Float[Tensor, " batch"]]


@dataclass(frozen=True)
class Perturbed:
    """What the answer becomes, as shares of what it was."""

    positive: float
    negative: float
    comprehensiveness: float
    sufficiency: float


@torch.no_grad()
def perturbed(ask: Ask, embedding: Vectors, baseline: Vectors, scores: dict[str, Float[Tensor, " token"]]) -> Perturbed:
    """Areas under both curves, and what is lost without and with the most important tokens. `ask` gives the answer, a
    number that is 0 or more, such as a probability. Of equal tokens the one that was read first goes first."""
    stacks = [stack for stack in embedding if stack in scores]
    order = torch.cat([scores[stack] for stack in stacks]).argsort(descending=True, stable=True)
    count = len(order)
    areas = [round(step * count / STEPS) for step in range(STEPS + 1)]
    bins = [max(1, round(share * count)) for share in BINS]
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(count, device=order.device))
    kept = [rank >= gone for gone in areas] + [rank < count - gone for gone in areas]
    kept += [rank >= gone for gone in bins] + [rank < left for left in bins]
    found = _answers(ask, embedding, baseline, stacks, torch.stack(kept))
    whole = float(found[0])
    shares = (found / whole).tolist() if whole > 0 else [0.0] * len(found)
    positive, negative = shares[: STEPS + 1], shares[STEPS + 1 : 2 * STEPS + 2]
    without, alone = shares[2 * STEPS + 2 : -len(BINS)], shares[-len(BINS) :]
    return Perturbed(
        positive=_area(positive),
        negative=_area(negative),
        comprehensiveness=1 - sum(without) / len(BINS),
        sufficiency=1 - sum(alone) / len(BINS),
    )


def _answers(
    ask: Ask, embedding: Vectors, baseline: Vectors, stacks: list[str], kept: Bool[Tensor, "row token"]
) -> Float[Tensor, " row"]:
    """The answer with only the kept tokens, for every row."""
    pieces = dict(zip(stacks, torch.split(kept, [len(embedding[stack]) for stack in stacks], dim=1), strict=True))
    found = []
    for begin in range(0, len(kept), AT_ONCE):
        rows = slice(begin, begin + AT_ONCE)
        given = {
            stack: torch.where(pieces[stack][rows, :, None], own, baseline[stack])
            if stack in pieces
            else own.expand(len(kept[rows]), *own.shape)
            for stack, own in embedding.items()
        }
        found.append(ask(given))
    return torch.cat(found)


def _area(values: list[float]) -> float:
    """Under a curve over equal steps, as a share of the whole width."""
    return (sum(values) - (values[0] + values[-1]) / 2) / (len(values) - 1)
