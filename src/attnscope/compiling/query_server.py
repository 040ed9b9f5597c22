"""Heads for many patterns on the same keys, as fast as this machine can: keys first, and then patterns by the thousand.

    server = attnscope.query_server(attnscope.fixed_keys(256, 29))
    served = server.serve(patterns)                 # a head for each pattern, and whether every row of it is certified

Rows of all patterns are solved together (`solvers.many_rows`), lifted to the whole margin on the keys as a head stores
them (`solvers.lifting`) and checked one by one, by a check that is never kinder than the certificate
(`heads.quick_check`). Rows that do not pass go through the certificate itself, first no longer than the leak asks for,
then as `queries_for` finds them.

Where there are few supports (n^k at most a quarter of a million: every pair of up to 512 keys), the direction of a
support is remembered. It is the best one for equal weights, and any weights are served along it: ratios are those of
the base, and the scale sees to the margin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.heads.accuracy import Accuracy
from attnscope.heads.certificate import certified_rows
from attnscope.heads.factors import Factors
from attnscope.heads.head import Head
from attnscope.heads.quick_check import surely_certified
from attnscope.heads.ratios import refuse_too_narrow
from attnscope.heads.rounding import HALF, rounded
from attnscope.heads.rows import Rows
from attnscope.patterns.pattern import Pattern
from attnscope.solvers.keys import Keys
from attnscope.solvers.largest_margin import largest_margin
from attnscope.solvers.lifting import lifted, whole_margin
from attnscope.solvers.many_rows import directions, equations
from attnscope.solvers.settling import settled

_REMEMBERED = 2**18  # supports, as numbers of k digits
_ELEMENTS = 2**18  # logits of one block of rows: 2 MB


@dataclass(frozen=True, eq=False)
class Served:
    """A head for each pattern, whether every row of it is certified, and how many rows the quick check did not pass."""

    heads: list[Head]
    certified: list[bool]
    looked_at_again: int


def query_server(keys: Keys, accuracy: Accuracy | None = None) -> QueryServer:
    """Serves patterns on these keys. Half precision, whose queries are searched by corners, is for `queries_for`."""
    accuracy = accuracy or Accuracy()
    if accuracy.dtype in HALF:
        raise RefusalError(f"Patterns are served in float32 or float64: use queries_for for {accuracy.dtype}.")
    return QueryServer(keys, accuracy)


class QueryServer:
    """Keys as a head stores them, and the directions of supports that were met."""

    def __init__(self, keys: Keys, accuracy: Accuracy) -> None:
        self.source, self.accuracy = keys, accuracy
        self.stored = torch.from_numpy(keys.array).to(getattr(torch, accuracy.dtype))
        self.keys = self.stored.double()
        self.margin = whole_margin(len(self.keys), accuracy)
        self._remembered: dict[int, _Memory] = {}

    @torch.no_grad()
    def serve(self, patterns: Sequence[Pattern]) -> Served:
        for pattern in patterns:
            if pattern.n_keys != len(self.keys):
                raise RefusalError(
                    f"The pattern has {pattern.n_keys} keys and {len(self.keys)} are fixed: make keys for "
                    f"{pattern.n_keys}."
                )
            refuse_too_narrow(pattern, self.source.width)
        if not patterns:
            return Served([], [], 0)
        rows = Rows.of(patterns)
        queries = torch.empty(len(rows), self.source.width, dtype=self.stored.dtype)
        good = torch.empty(len(rows), dtype=torch.bool)
        towards = self._directions(rows)
        step = max(64, _ELEMENTS // len(self.keys))
        for first in range(0, len(rows), step):
            part = slice(first, first + step)
            queries[part], good[part] = self._settled(rows[part], towards[part])
        failing = (~good).nonzero()[:, 0]
        causal = torch.cat([torch.full((pattern.n,), pattern.causal) for pattern in patterns])
        again = failing[~causal[failing]]
        if len(again):
            queries[again], good[again] = self._again(rows[again], towards[again])
        heads, certified, first = [], [], 0
        for pattern in patterns:
            part = slice(first, first + pattern.n)
            first += pattern.n
            if pattern.causal and not good[part].all():  # whole: what a row sees depends on its number
                wrong = ~good[part]
                queries[part][wrong], good[part][wrong] = (found[wrong] for found in self._slowly(pattern))
            heads.append(Head(queries[part].clone(), self.stored, pattern.causal, "margin", self.source.facts()))
            certified.append(bool(good[part].all()))
        return Served(heads, certified, len(failing))

    def _directions(self, rows: Rows) -> Float[Tensor, "row width"]:
        n, k = len(self.keys), rows.support.shape[1]
        if rows.last is not None or n**k > _REMEMBERED:
            return directions(self.keys, rows, self.margin)[0]
        memory = self._remembered.setdefault(
            k, _Memory(torch.full((n**k,), -1), self.keys.new_empty(0, self.source.width))
        )
        code = (rows.support * n ** torch.arange(k)).sum(1)
        unknown = code[memory.place[code] < 0]
        if len(unknown):
            fresh, where = torch.unique(code, return_inverse=True)
            one = torch.empty(len(fresh), dtype=torch.int64).scatter_(0, where, torch.arange(len(code)))
            one = one[memory.place[fresh] < 0]
            equal = replace(rows[one], logs=torch.zeros(len(one), k, dtype=torch.float64))
            memory.place[code[one]] = len(memory.directions) + torch.arange(len(one))
            memory.directions = torch.cat([memory.directions, directions(self.keys, equal, self.margin)[0]])
        return memory.directions[memory.place[code]]

    def _settled(
        self, rows: Rows, towards: Float[Tensor, "row width"]
    ) -> tuple[Float[Tensor, "row width"], Bool[Tensor, " row"]]:
        exact = lifted(equations(self.keys, rows), towards, self.keys, rows, self.margin)
        queries = (exact * self.source.width**0.5).to(self.stored.dtype)
        return queries, surely_certified(queries, self.stored, rows, self.accuracy)

    def _again(
        self, rows: Rows, towards: Float[Tensor, "row width"]
    ) -> tuple[Float[Tensor, "row width"], Bool[Tensor, " row"]]:
        """Rows that the quick check did not pass: as long as the leak asks for, else the exact programme of each."""
        pattern = rows.pattern(len(self.keys))
        solved = equations(self.keys, rows)
        settle = settled(solved.base.numpy(), solved.off(towards).numpy(), self.keys.numpy(), pattern, self.accuracy)
        queries, good = self._certified(Factors(settle.queries, self.source.array), pattern)
        left = (~good).nonzero()[:, 0]
        if len(left):
            queries[left], good[left] = self._slowly(rows[left].pattern(len(self.keys)))
        return queries, good

    def _slowly(self, pattern: Pattern) -> tuple[Float[Tensor, "row width"], Bool[Tensor, " row"]]:
        return self._certified(largest_margin(pattern, self.source, self.accuracy), pattern)

    def _certified(self, factors: Factors, pattern: Pattern) -> tuple[Float[Tensor, "row width"], Bool[Tensor, " row"]]:
        head = rounded(factors, pattern, self.accuracy.dtype, "margin")
        return head.queries, certified_rows(head, pattern, self.accuracy)


@dataclass
class _Memory:
    """Where the direction of a support lies, by the number that its keys write."""

    place: Tensor
    directions: Tensor
