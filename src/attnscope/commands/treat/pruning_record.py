"""The part of a treatment's record that is about removed heads: orders of removal, costs, and what was checked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from attnscope.core.decoding import FieldError
from attnscope.core.ranges import AtLeast, AtMost, Count, Finite, FiniteOrNan, Index, Several, Size, SizeOrNan

FREE = 0.01  # nats per token, a hundredth of the perplexity: heads that cost at most this can go


@dataclass(frozen=True)
class Order:
    """One order of removing heads: `heads` as (block, head), and `losses` at `Pruning.counts`."""

    name: str  # "effect", "size", "value", "contribution" or "random"
    title: str
    heads: tuple[tuple[Index, Index], ...]
    losses: tuple[Size, ...]
    low: tuple[Size, ...] = ()  # lowest and highest over several random orders
    high: Annotated[tuple[Size, ...], AtLeast("low")] = ()
    fits: Count | None = None  # heads that the budget, or the caller's number, allows on the choosing text
    choosing_loss: SizeOrNan = math.nan  # loss on the choosing text without them


@dataclass(frozen=True)
class Cost:
    """What the loss rises by without `removed` heads, and its 95% interval over texts (NaN for a single text)."""

    removed: Count
    rise: Finite
    low: FiniteOrNan = math.nan
    high: FiniteOrNan = math.nan


@dataclass(frozen=True)
class HeadCost:
    """What one head costs, on some sequences of the choosing text, in nats per token.

    `alone`: it is taken out of the whole model. `among`: it is taken out too, when all other removed heads are out. A
    head whose `alone` is small and whose `among` is large was backed up by heads that are out; `partner` is the one
    with which its cost rises most, and `together` the cost of taking out these two.
    """

    block: Index
    head: Index
    alone: Finite
    among: Finite
    among_low: FiniteOrNan = math.nan
    among_high: FiniteOrNan = math.nan
    partner: tuple[Index, Index] | None = None
    together: FiniteOrNan = math.nan

    @property
    def place(self) -> tuple[int, int]:
        return self.block, self.head

    def backed_up(self, limit: float) -> bool:
        """Return whether the head could go alone at a cost of `limit`, but not with the others."""
        return self.alone <= limit < self.among_low


@dataclass(frozen=True)
class Pruning:
    """Held-out loss against the number of removed heads, in several orders.

    Three texts do not overlap. On the first the order and a number of heads are chosen. On the second the number is
    lowered until the budget is kept with a margin. The third is held out: all losses here that do not say otherwise.
    """

    counts: Annotated[tuple[Count, ...], AtMost("total")]
    orders: tuple[Order, ...]
    removed: Annotated[Count, AtMost("total")]  # heads that the treated model lacks
    by: str  # the order of their removal
    total: Several
    prompts: Count  # number of texts that the values come from
    asked: str  # what the caller requested: "12 heads", "loss within 0.05"
    budget: SizeOrNan = math.nan  # nats per token that removal may cost; NaN: the caller gave a number of heads
    curve: tuple[Cost, ...] = ()  # of the chosen order, at `counts`
    checked: tuple[Cost, ...] = ()  # numbers of heads that were tried on the second text; the last one was taken
    costs: tuple[HeadCost, ...] = ()  # of every head
    passes: Count = 0  # sets of heads whose loss was measured, over all texts
    effect_sequences: Count = 0  # of the choosing text, on which effects of heads were measured
    effect_tokens: Count = 0

    @property
    def limit(self) -> float:
        """What heads may cost to be called dispensable: the budget, or `FREE` if the caller gave a number of heads."""
        return FREE if math.isnan(self.budget) else self.budget


def refuse_odd_pruning(pruning: Pruning) -> None:
    """Raise a `FieldError` for fields that contradict each other."""
    if not pruning.counts or not pruning.orders:
        raise FieldError("pruning: counts and orders are needed")
    for number, order in enumerate(pruning.orders):
        if any(len(one) not in (0, len(pruning.counts)) for one in (order.low, order.high)) or len(order.losses) != len(
            pruning.counts
        ):
            raise FieldError(f"pruning.orders[{number}]: a loss at every count is needed")
        if len(order.low) != len(order.high):
            raise FieldError(f"pruning.orders[{number}]: low and high differ in length")
    if pruning.curve and tuple(cost.removed for cost in pruning.curve) != pruning.counts:
        raise FieldError("pruning.curve: a cost at every count is needed")
