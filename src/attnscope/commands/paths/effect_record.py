"""Measured effects of taking heads out, as part of the record of `paths`.

report.effects.heads[0].total       what the target loses without this head, everything after it responding
report.effects.heads[0].patterns    the part of it that goes through the patterns of later heads
report.effects.edges[0]             one head's effect through the query, key or value of another
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from attnscope.core.ranges import Count, Finite, Index, Probability

Replacement = Literal["mean", "resample", "zero"]
Place = tuple[Index, Index]  # block, head
NOTABLE = 0.1  # a head is named if its removal moves what is followed by more than this share of it
ONE_LOGIT = 1.0  # shares of a smaller difference of logits are shares of this


@dataclass(frozen=True)
class HeadEffect:
    """The target with the head minus the target without it, and how the difference comes about.

    `values` is the loss of the frozen network. `patterns` is what is lost in addition if later patterns respond, and
    `norms_and_gates` if norms and gates respond too. The three add up to `total`. They are None where later patterns
    cannot be recomputed, and for small effects if not all heads were taken out. `probability` is that of the target's
    token or class without the head.
    """

    block: Index
    head: Index
    total: Finite
    probability: Probability | None
    values: Finite | None = None
    patterns: Finite | None = None
    norms_and_gates: Finite | None = None

    @property
    def place(self) -> tuple[int, int]:
        return self.block, self.head


@dataclass(frozen=True)
class EdgeEffect:
    """The effect of one head through the query, key or value of a later one alone.

    `induction`: the token at which the answer is read also occurs earlier, and there the answer follows it. The
    reader attends from the later of these two tokens to that earlier answer. The sender attends from that earlier
    answer most to the token before it.
    """

    sender: Place
    reader: Place
    by: Literal["query", "key", "value"]
    total: Finite
    probability: Probability | None
    induction: bool = False


@dataclass(frozen=True)
class SetEffect:
    """The effect of taking several heads out together."""

    heads: tuple[Place, ...]
    total: Finite
    probability: Probability | None


@dataclass(frozen=True)
class Effects:
    """What happens without single heads, pairs of heads and sets of heads; nothing is frozen."""

    replacement: Replacement
    reference: str  # what the replacements come from
    value: Finite  # the target of the untouched model
    probability: Probability | None  # of the target's token or class
    of_heads: Count  # heads of the stack
    heads: tuple[HeadEffect, ...]  # those that were taken out
    edges: tuple[EdgeEffect, ...] = ()
    sets: tuple[SetEffect, ...] = ()
    # What says which heads matter: the probability, if there is one, or the target (a difference of two logits).
    follows: Literal["probability", "target"] = "probability"

    @property
    def of_probability(self) -> bool:
        """Whether heads are judged by the probability of the target's token or class."""
        return self.follows == "probability" and self.probability is not None

    @property
    def whole(self) -> bool:
        """Whether every head was taken out; otherwise first-order estimates chose some."""
        return len(self.heads) == self.of_heads

    def change(self, one: HeadEffect | EdgeEffect | SetEffect) -> float:
        """Return the relative change, without the heads, of the probability or of the target (see `follows`).

        A difference of two logits is the logarithm of the odds between the two, and can be close to zero. Its change is
        relative to one logit at least: a change by a tenth of a logit changes these odds by about a tenth.
        """
        if self.follows == "target":
            return -one.total / max(abs(self.value), ONE_LOGIT)
        if self.probability is None or one.probability is None:
            return -one.total / abs(self.value) if self.value else 0.0
        return one.probability / self.probability - 1 if self.probability else 0.0

    def notable(self, one: HeadEffect | EdgeEffect | SetEffect) -> bool:
        return abs(self.change(one)) > NOTABLE

    @property
    def named(self) -> list[HeadEffect]:
        """The heads whose removal matters, largest change first."""
        return sorted((one for one in self.heads if self.notable(one)), key=self.size)

    def size(self, one: HeadEffect | EdgeEffect | SetEffect) -> float:
        """Return a key that sorts the largest change first. Halving and doubling a probability count the same."""
        change = self.change(one)
        if not self.of_probability:
            return -abs(change)
        return -abs(math.log(max(1 + change, 1e-300)))

    def of(self, places: tuple[tuple[int, int], ...]) -> SetEffect | None:
        return next((one for one in self.sets if one.heads == places), None)
