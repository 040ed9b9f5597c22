"""Texts in which every next symbol depends on a few before it, by a rule that is another one in every text.

    chains = Chains(parents=(1, 2), symbols=3, tokens=100)
    text = chains.draw(rows=9000, seed=0)
    text.ids        [row, tokens + 1]: a model reads all but the last and answers the last
    text.rules      [row, symbol of the first parent, ..., next symbol]: rows ~ Dirichlet(alpha)

With `others` below 1 a rule is that of the first parent alone, and of all of them in so large a part: the others are
parents still, but tell little.

With alpha = 0.1 most rows of a rule are nearly certain, so that who counts what followed the same parents before
foretells well, and who does not look at the parents does not (the data of arXiv:2409.10559).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.core.errors import RefusalError


@dataclass(frozen=True)
class ChainText:
    ids: Int[Tensor, "row token"]
    rules: Float[Tensor, "row ..."]


@dataclass(frozen=True)
class Chains:
    """`parents` are how many places before: 1 is the symbol just before."""

    parents: tuple[int, ...] = (1, 2)
    symbols: int = 3
    tokens: int = 100
    alpha: float = 0.1
    others: float = 1.0

    def __post_init__(self) -> None:
        if not self.parents or min(self.parents) < 1 or max(self.parents) >= self.tokens:
            raise RefusalError("A chain needs parents at least 1 place before, and a text longer than the farthest.")
        if self.symbols < 2 or not self.alpha > 0 or not 0 <= self.others <= 1:
            raise RefusalError(
                "A chain needs 2 symbols, alpha over 0 and others between 0 and 1, "
                f"not {self.symbols}, {self.alpha} and {self.others}."
            )

    def rules(self, rows: int, seed: int) -> Float[Tensor, "row ..."]:
        shape = (rows, *(self.symbols for _ in self.parents))
        rng = np.random.default_rng((seed, 0))
        of_all = torch.from_numpy(rng.dirichlet([self.alpha] * self.symbols, size=shape))
        if self.others == 1:
            return of_all
        of_first = torch.from_numpy(rng.dirichlet([self.alpha] * self.symbols, size=shape[:2]))
        spread = of_first.reshape(rows, self.symbols, *(1 for _ in self.parents[1:]), self.symbols)
        return (1 - self.others) * spread + self.others * of_all

    def draw(self, rows: int, seed: int) -> ChainText:
        """The first symbols, which have no parents, are uniform."""
        rules, rng = self.rules(rows, seed), np.random.default_rng((seed, 1))
        ends = rules.cumsum(-1)
        chance = torch.from_numpy(rng.random((rows, self.tokens + 1)))
        first = max(self.parents)
        ids = torch.zeros(rows, self.tokens + 1, dtype=torch.long)
        ids[:, :first] = torch.from_numpy(rng.integers(0, self.symbols, (rows, first)))
        each = torch.arange(rows)
        for place in range(first, self.tokens + 1):
            row = ends[(each, *(ids[:, place - lag] for lag in self.parents))]
            ids[:, place] = (chance[:, place, None] > row).sum(-1).clamp_max(self.symbols - 1)
        return ChainText(ids, rules)
