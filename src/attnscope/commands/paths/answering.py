"""Read answers from the last streams of changed copies of a text, and find out what heads look at."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.commands.paths.reading import Aim
from attnscope.hf.editing.replacing import Place, close
from attnscope.hf.loading.one_text import Reading
from attnscope.pathways.graded import Graded, watching
from attnscope.pathways.network import Network

LOOKS = 0.1  # weight from which a head looks at a token


@dataclass(frozen=True)
class Answers:
    """The target of every changed copy, and log p of its token or class, if it has one."""

    target: Float[Tensor, " copy"]
    log_probability: Float[Tensor, " copy"] | None

    def mean(self, of: slice) -> tuple[float, float | None]:
        """Return the mean target and the mean probability of some copies."""
        chances = None if self.log_probability is None else float(self.log_probability[of].exp().mean())
        return float(self.target[of].mean()), chances


@dataclass(frozen=True, eq=False)
class Answering:
    """Reads answers from last streams. If `alone`, the answer at a token needs the stream at that token only."""

    network: Network
    goal: Aim
    alone: bool

    @classmethod
    def of(cls, network: Network, goal: Aim) -> Answering:
        """Find out if what follows the last block treats tokens separately, which saves most of its cost."""
        place = goal.position
        if goal.entry is None or place is None:
            return cls(network, goal, False)
        try:
            row = network.tail(network.streams[-1][:, place : place + 1])
        except (RuntimeError, IndexError, ValueError):
            return cls(network, goal, False)
        return cls(network, goal, close(row, network.output[:, place : place + 1]))

    def __call__(self, last: Float[Tensor, "copy token width"]) -> Answers:
        target, place = self.goal.target, self.goal.position
        if target.direction is not None:
            return Answers((last * target.direction).flatten(1).sum(1), None)
        if self.alone:
            assert place is not None
            logits = self.network.tail(last[:, place : place + 1])[:, 0]
        else:
            rows = [self.network.tail(one[None])[0] for one in last]
            logits = torch.stack(rows if place is None else [row[place] for row in rows])
        numbers = torch.stack([weight * logits[:, entry] for entry, weight in target.entries]).sum(0)
        return Answers(numbers, logits.log_softmax(-1)[:, self.goal.entry])

    def first_order(self, last: Float[Tensor, "copy token width"]) -> list[Tensor]:
        """Return the numbers whose derivatives rank heads: log p and the target; of a difference, only the target.

        A head that makes the answer likely together with its likeliest rivals moves the target and, to first order, not
        log p.
        """
        answers = self(last)
        both = (None if self.goal.goal.kind == "difference" else answers.log_probability, answers.target)
        return [number.sum() for number in both if number is not None]


@dataclass(frozen=True, eq=False)
class Looking:
    """The tokens that heads look at, found by running their blocks once more."""

    network: Network
    goal: Aim
    read: Reading
    patterns: dict[int, Float[Tensor, "head query key"]] = field(default_factory=dict)  # by block, once it has run

    def induction(self, sender: Place, reader: Place) -> bool:
        """Return whether two heads look as in an induction circuit (see `EdgeEffect`)."""
        ids, place, entry = self.read.ids, self.goal.position, self.goal.entry
        if ids is None or place is None or entry is None:
            return False
        copied = [at for at in range(1, place) if int(ids[at]) == entry and int(ids[at - 1]) == int(ids[place])]
        if not copied:
            return False
        looks = self.row(reader, place)
        return any(looks[at] >= LOOKS and int(self.row(sender, at).argmax()) == at - 1 for at in copied)

    def row(self, head: Place, query: int) -> Float[Tensor, " key"]:
        """Return one row of the pattern of a head."""
        block, number = head

        def keep(_: Graded, pattern: Tensor) -> None:
            self.patterns.setdefault(block, pattern.reshape(-1, *pattern.shape[-2:]))

        if block not in self.patterns:
            with watching(keep):
                self.network.block(block, Graded.entering(self.network.streams[block], "none", sources=False))
        return self.patterns[block][number, query]
