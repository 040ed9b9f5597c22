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

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.commands.compile.search import building
from attnscope.core.construction import Construction
from attnscope.core.errors import RefusalError, nearest
from attnscope.core.progress import Advance
from attnscope.heads.accuracy import Accuracy, Factors, asked, precision, refuse_too_narrow
from attnscope.heads.certificate import certified_rows
from attnscope.heads.facts import Universality
from attnscope.heads.head import Head, Rows
from attnscope.heads.pattern import Pattern, refuse_negative
from attnscope.heads.rounding import HALF, rounded, surely_certified
from attnscope.heads.solvers.both_sides import interpolated
from attnscope.heads.solvers.keys import Keys, make_keys
from attnscope.heads.solvers.largest_margin import largest_margin
from attnscope.heads.solvers.many_rows import directions, equations
from attnscope.heads.solvers.settling import lifted, settled, whole_margin
from attnscope.heads.solvers.universality import universal_head, universality_of
from attnscope.heads.solvers.universality import universality as worst_of_all

# Keys once, patterns ever after: the setting of arXiv:2106.03764, where what the head knows is fixed beforehand.
#
#     keys = fixed_keys(1024, 32)
#     factors = queries_for(pattern, keys)            # as often as you like; `leaking` in its notes counts rows that fail
#     proof = universality(40, 2)                     # are keys of width 4 proved to serve all rows of 2 of 40 keys?
#     head = universal_head(pattern, proof)           # if so: the head of the proof for any such pattern
#
# Fixed keys know no pattern, and which patterns they serve is seen when queries are sought; only those on the moment
# curve are proved to serve all (`solvers.universality`), while n is small enough for the precision.
# `frame` interpolates, thousands of rows a second, and wants keys of low coherence. `margin` solves a quadratic program
# for every row, hundreds of rows a second, and needs half the width or less.

METHODS = {"frame": interpolated, "margin": largest_margin}

__all__ = ["METHODS", "Keys", "fixed_keys", "queries_for", "universal_head", "universality"]


def fixed_keys(
    n: int,
    d: int,
    kind: str = "auto",
    seed: int = 0,
    *,
    method: str = "margin",
    dtype: str = "float32",
) -> Keys:
    """n unit keys of width d. `auto` takes the kind that measured best for the method and precision meant."""
    refuse_negative(seed)
    rng = np.random.default_rng(seed)
    keys = make_keys(n, d, kind, rng, separated=_known(method) == "margin", dtype=precision(dtype))
    return Keys(keys.array, keys.kind, keys.coherence, keys.welch_bound, seed)


def queries_for(pattern: Pattern, keys: Keys, method: str = "margin", accuracy: Accuracy | None = None) -> Factors:
    """Queries that realise this pattern on these keys, which stay as they are. Made for `frame`, keys serve `margin` as
    well; those made for `margin` are too coherent for `frame`."""
    if len(keys.array) != pattern.n_keys:
        raise RefusalError(
            f"The pattern has {pattern.n_keys} keys and {len(keys.array)} are fixed: make keys for {pattern.n_keys}."
        )
    refuse_too_narrow(pattern, keys.width)
    return METHODS[_known(method)](pattern, keys, accuracy or Accuracy())


def universality(
    n: int,
    k: int,
    *,
    spread: float = 4.0,
    dtype: str = "float32",
    ratio_error: float = 0.1,
    leak: float = 0.01,
    width: int | None = None,
) -> Universality:
    """Whether keys on the moment curve (width 2k where none is given) are proved to serve every row of up to k of n
    keys with weights within a factor `spread`, and what the worst such row needs. `proved` False: not known."""
    return worst_of_all(n, k, spread, asked(ratio_error, leak, dtype), width)


def _known(method: str) -> str:
    if method not in METHODS:
        raise RefusalError(
            f"There is no way to find queries on fixed keys called '{method}'.{nearest(method, METHODS)}"
        )
    return method


# Do keys that were found with one pattern serve others? That they serve *all* is proved (`proof`), or it is not known:
# it cannot be tried, so what was tried is counted (`served`).
#
# The patterns that are tried have rows of the same sizes as the one at hand, with supports drawn anew among the keys
# that each query sees and the same weights in another order: nobody looked for them when the keys were made.

OTHERS = 8
SECONDS = 20.0  # of processor time, after which no other pattern is begun
SPREADS = (1000.0, 16.0)  # of weights in a row, tried before the pattern's own


class KeysServed(NamedTuple):
    """None where nothing was tried."""

    realised: int | None
    tried: int | None


def proof(head: Head, pattern: Pattern, accuracy: Accuracy) -> Universality | None:
    """A proof that the stored keys of this head serve all rows of up to `pattern.k` keys, for the largest spread of
    weights at hand; None where there is none."""
    for spread in (*(one for one in SPREADS if one > pattern.spread), pattern.spread):
        found = universality_of(head.keys, pattern.k, spread, accuracy)
        if found is None or found.proved:
            return found
    return None


def served(
    construction: Construction, pattern: Pattern, accuracy: Accuracy, width: int, seed: int, advance: Advance
) -> KeysServed:
    """How many fresh patterns the keys of this construction, width and seed realise, of how many."""
    realised = tried = 0
    start = time.process_time()
    while tried < OTHERS and time.process_time() - start < SECONDS:
        advance(f"width {width}: another pattern on the same keys", tried, OTHERS)
        other = another(pattern, np.random.default_rng([seed, tried]))
        try:
            certificate = building(construction, other, accuracy)(width, seed, advance)[1]
        except RefusalError:  # its rows need more than this width
            certificate = None
        tried += 1
        realised += certificate is not None and certificate.reached
    return KeysServed(realised, tried)


def another(pattern: Pattern, rng: np.random.Generator) -> Pattern:
    """Rows of the same sizes on other keys."""
    drawn = [rng.permutation(int(seen))[:size] for seen, size in zip(pattern.visible, pattern.counts, strict=True)]
    weights = pattern.weights.copy()
    for a, b in pairwise(pattern.starts):
        rng.shuffle(weights[a:b])
    return Pattern.of(
        pattern.rows,
        np.concatenate(drawn),
        weights,
        n=pattern.n,
        n_keys=pattern.n_keys,
        causal=pattern.causal,
        normalise=True,
        name="another pattern",
    )


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
