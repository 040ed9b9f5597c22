"""Functions one after the other, each given as a table in the text: f_L(...f_1(q)) (arXiv:2602.01763, 2412.02975).

    task = Composition(folds=3, arguments=16, queries=8)
    asked = task.draw(rows=32, rng)
    asked.tables        [row, fold, argument]  f_l(a)
    asked.answers       [row, query, fold]     f_1(q), f_2(f_1(q)), ...

A text is one token for each entry (l, a, f_l(a)), all of f_1 first, then the queries: a causal model meets every table
before the one whose answers say where to look in it, so that it cannot look ahead. `vectors` gives tokens as three
one-hot parts: which entry (fold and argument), and what the token holds, which for a query is q.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.core.errors import RefusalError


@dataclass(frozen=True)
class Asked:
    tables: Int[Tensor, "row fold argument"]
    queries: Int[Tensor, "row query"]
    answers: Int[Tensor, "row query fold"]


@dataclass(frozen=True)
class Composition:
    """`folds` random functions of `arguments` symbols into the same symbols, asked `queries` times."""

    folds: int
    arguments: int
    queries: int = 1

    def __post_init__(self) -> None:
        if self.folds < 1 or self.arguments < 2 or self.queries < 1:
            raise RefusalError("Composition needs at least 1 function of 2 symbols and 1 query: give more.")

    @property
    def entries(self) -> int:
        return self.folds * self.arguments

    @property
    def tokens(self) -> int:
        return self.entries + self.queries

    @property
    def inputs(self) -> int:
        """How wide the vectors are: fold and argument of an entry together, and what is held."""
        return self.entries + self.arguments

    def draw(self, rows: int, rng: torch.Generator) -> Asked:
        tables = torch.randint(self.arguments, (rows, self.folds, self.arguments), generator=rng)
        queries = torch.randint(self.arguments, (rows, self.queries), generator=rng)
        return Asked(tables, queries, composed(tables, queries))

    def vectors(self, asked: Asked) -> Float[Tensor, "row token inputs"]:
        held = torch.cat([asked.tables.flatten(1), asked.queries], dim=1)
        entry = F.pad(torch.eye(self.entries), (0, 0, 0, self.queries))  # queries are no entry
        return torch.cat([entry.expand(len(held), -1, -1), F.one_hot(held, self.arguments).float()], dim=-1)


def composed(
    tables: Int[Tensor, "row fold argument"], queries: Int[Tensor, "row query"]
) -> Int[Tensor, "row query fold"]:
    """The answers after every function, by looking them up."""
    found, answers = queries, []
    for table in tables.unbind(1):
        found = table.gather(1, found)
        answers.append(found)
    return torch.stack(answers, dim=-1)
