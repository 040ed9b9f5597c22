"""Choose keys before the pattern is known, as in arXiv:2106.03764, and find queries on them for many patterns.

    keys = fixed_keys(1024, 32)
    factors = queries_for(pattern, keys)            # `leaking` in the notes counts the rows that fail
    found = queries_for_many(keys).solve(patterns)  # a head for each pattern, and whether all its rows are certified
    proof = universality(40, 2)                     # are keys of width 4 proved to serve all rows of 2 of 40 keys?
    head = universal_head(pattern, proof)           # if so: the head of the proof for any such pattern

Solving for queries shows whether fixed keys serve a pattern. Only keys on the moment curve are proved to serve all
patterns (`solvers.universality`), if n is small enough for the precision. The method `frame` interpolates: thousands of
rows a second, but it needs keys of low coherence. The method `margin` solves a quadratic program for every row:
hundreds of rows a second, at half the width or less.
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
from attnscope.core.stamp import refuse_unusable_seed
from attnscope.heads.accuracy import Accuracy, Factors, checked_accuracy, precision, refuse_too_narrow
from attnscope.heads.certificate import certified_rows
from attnscope.heads.facts import Universality
from attnscope.heads.head import Head, Rows
from attnscope.heads.pattern import Pattern
from attnscope.heads.rounding import HALF, rounded, surely_certified
from attnscope.heads.solvers.interpolation import interpolated, settled
from attnscope.heads.solvers.keys import Keys, make_keys
from attnscope.heads.solvers.largest_margin import largest_margin
from attnscope.heads.solvers.many_rows import directions, equations, lifted, whole_margin
from attnscope.heads.solvers.universality import universal_head, universality_of
from attnscope.heads.solvers.universality import universality as worst_of_all

METHODS = {"frame": interpolated, "margin": largest_margin}
OTHERS = 8  # other patterns to try on the keys of a head
SECONDS = 20.0  # seconds of processor time, after which no other pattern is started
SPREADS = (1000.0, 16.0)  # spreads of weights in a row, tried before the pattern's own spread
_REMEMBERED = 2**18  # the largest number of supports, n^k, whose directions are cached
_ELEMENTS = 2**18  # logits of one block of rows: 2 MB

__all__ = ["METHODS", "Keys", "fixed_keys", "queries_for", "queries_for_many", "universal_head", "universality"]


def fixed_keys(
    n: int, d: int, kind: str = "auto", seed: int = 0, *, method: str = "margin", dtype: str = "float32"
) -> Keys:
    """Return n keys of width d and norm 1. "auto" takes the kind that was best for this method and precision."""
    refuse_unusable_seed(seed, lowest=0)
    rng = np.random.default_rng(seed)
    keys = make_keys(n, d, kind, rng, separated=_known(method) == "margin", dtype=precision(dtype))
    return replace(keys, seed=seed)


def queries_for(pattern: Pattern, keys: Keys, method: str = "margin", accuracy: Accuracy | None = None) -> Factors:
    """Return queries that realise this pattern on these keys.

    Keys made for `frame` serve `margin` as well. Keys made for `margin` are too coherent for `frame`.
    """
    _refuse_misfit(pattern, keys)
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
    """Return whether keys on the moment curve (width 2k by default) are proved to serve every row of up to k of n keys.

    The weights of a row differ by at most a factor `spread`. The result also has the errors of the worst such row. If
    `proved` is False, it is unknown whether the keys serve all rows.
    """
    return worst_of_all(n, k, spread, checked_accuracy(ratio_error, leak, dtype), width)


def _known(method: str) -> str:
    if method not in METHODS:
        raise RefusalError(f"There is no method '{method}' to find queries on fixed keys.{nearest(method, METHODS)}")
    return method


def _refuse_misfit(pattern: Pattern, keys: Keys) -> None:
    if pattern.n_keys != len(keys.array):
        raise RefusalError(
            f"The pattern has {pattern.n_keys} keys and {len(keys.array)} are fixed: make keys for {pattern.n_keys}."
        )
    refuse_too_narrow(pattern, keys.width)


class KeysServed(NamedTuple):
    """The number of patterns that the keys realise, and the number that was tried; None if none was tried."""

    realised: int | None
    tried: int | None


def proof(head: Head, pattern: Pattern, accuracy: Accuracy) -> Universality | None:
    """Return a proof that the stored keys serve all rows of up to `pattern.k` keys, or None.

    Spreads of weights are tried from the largest down.
    """
    for spread in (*(wider for wider in SPREADS if wider > pattern.spread), pattern.spread):
        answer = universality_of(head.keys, pattern.k, spread, accuracy)
        if answer is None or answer.proved:
            return answer
    return None


def served(
    construction: Construction, pattern: Pattern, accuracy: Accuracy, width: int, seed: int, advance: Advance
) -> KeysServed:
    """Count the new patterns that the keys of this construction, width and seed realise.

    This is used if there is no proof. It cannot show that keys serve *all* patterns.
    """
    realised = tried = 0
    start = time.process_time()
    while tried < OTHERS and time.process_time() - start < SECONDS:
        advance(f"width {width}: another pattern on the same keys", tried, OTHERS)
        other = another(pattern, np.random.default_rng([seed, tried]))
        tried += 1
        try:
            realised += building(construction, other, accuracy)(width, seed, advance)[1].reached
        except RefusalError:  # its rows need a larger width
            continue
    return KeysServed(realised, tried)


def another(pattern: Pattern, rng: np.random.Generator) -> Pattern:
    """Return a random pattern with the same number of keys in each row, and the same weights in another order."""
    drawn = [rng.permutation(int(seen))[:size] for seen, size in zip(pattern.visible, pattern.counts, strict=True)]
    weights = pattern.weights.copy()
    for a, b in pairwise(pattern.starts):
        rng.shuffle(weights[a:b])
    return pattern.with_entries(pattern.rows, np.concatenate(drawn), weights, name="another pattern")


Checked = tuple[Float[Tensor, "row width"], Bool[Tensor, " row"]]
"""Queries as a head stores them, and which rows are certified."""


@dataclass(frozen=True, eq=False)
class HeadsForMany:
    """A head for each pattern, and whether all its rows are certified.

    `looked_at_again` counts the rows that failed the quick check.
    """

    heads: list[Head]
    certified: list[bool]
    looked_at_again: int


def queries_for_many(keys: Keys, accuracy: Accuracy | None = None) -> QueriesForMany:
    """Return a solver for many patterns on the same keys. For half precision use `queries_for`."""
    accuracy = accuracy or Accuracy()
    if accuracy.dtype in HALF:
        raise RefusalError(f"Many patterns are solved in float32 or float64: use queries_for for {accuracy.dtype}.")
    return QueriesForMany(keys, accuracy)


class QueriesForMany:
    """Find the queries of many patterns on the same keys.

    Rows of all patterns are solved together (`solvers.many_rows`), scaled to the whole margin on the stored keys
    (`lifted`) and checked by `surely_certified`, which is at least as strict as the certificate. Rows that fail this
    quick check are checked by the certificate itself: first with the shortest query that the leak allows, then with
    the query that `queries_for` finds.

    If there are few supports (n^k at most 2^18: every pair of up to 512 keys), the direction of a support is cached. It
    is the best one for equal weights and fits any weights: the base sets the ratios, and the scale sets the margin.
    """

    def __init__(self, keys: Keys, accuracy: Accuracy) -> None:
        self.source, self.accuracy = keys, accuracy
        self.stored = torch.from_numpy(keys.array).to(getattr(torch, accuracy.dtype))
        self.keys = self.stored.double()
        self.margin = whole_margin(len(self.keys), accuracy)
        self._remembered: dict[int, _Directions] = {}

    @torch.no_grad()
    def solve(self, patterns: Sequence[Pattern]) -> HeadsForMany:
        """Return a head for each pattern."""
        for pattern in patterns:
            _refuse_misfit(pattern, self.source)
        if not patterns:
            return HeadsForMany([], [], 0)
        rows = Rows.of(patterns)
        queries = torch.empty(len(rows), self.source.width, dtype=self.stored.dtype)
        good = torch.empty(len(rows), dtype=torch.bool)
        towards = self._directions(rows)
        step = max(64, _ELEMENTS // len(self.keys))
        for first in range(0, len(rows), step):
            part = slice(first, first + step)
            queries[part], good[part] = self._lifted(rows[part], towards[part])
        failing = (~good).nonzero()[:, 0]
        causal = torch.cat([torch.full((pattern.n,), pattern.causal) for pattern in patterns])
        again = failing[~causal[failing]]
        if len(again):
            queries[again], good[again] = self._again(rows[again], towards[again])
        heads, certified, first = [], [], 0
        for pattern in patterns:
            part = slice(first, first + pattern.n)
            first += pattern.n
            if (
                pattern.causal and not good[part].all()
            ):  # solve the whole pattern: which keys a row sees depends on its index
                wrong = ~good[part]
                queries[part][wrong], good[part][wrong] = (values[wrong] for values in self._slowly(pattern))
            heads.append(Head(queries[part].clone(), self.stored, pattern.causal, "margin", self.source.facts()))
            certified.append(bool(good[part].all()))
        return HeadsForMany(heads, certified, len(failing))

    def _directions(self, rows: Rows) -> Float[Tensor, "row width"]:
        n, k = len(self.keys), rows.support.shape[1]
        if rows.last is not None or n**k > _REMEMBERED:
            return directions(self.keys, rows, self.margin)[0]
        empty = _Directions(torch.full((n**k,), -1), self.keys.new_empty(0, self.source.width))
        known = self._remembered.setdefault(k, empty)
        code = (rows.support * n ** torch.arange(k)).sum(1)
        if (known.place[code] < 0).any():
            different, which = torch.unique(code, return_inverse=True)
            example = torch.empty(len(different), dtype=torch.int64).scatter_(0, which, torch.arange(len(code)))
            example = example[known.place[different] < 0]
            equal = replace(rows[example], logs=torch.zeros(len(example), k, dtype=torch.float64))
            known.place[code[example]] = len(known.vectors) + torch.arange(len(example))
            known.vectors = torch.cat([known.vectors, directions(self.keys, equal, self.margin)[0]])
        return known.vectors[known.place[code]]

    def _lifted(self, rows: Rows, towards: Float[Tensor, "row width"]) -> Checked:
        exact = lifted(equations(self.keys, rows), towards, self.keys, rows, self.margin)
        queries = (exact * self.source.width**0.5).to(self.stored.dtype)
        return queries, surely_certified(queries, self.stored, rows, self.accuracy)

    def _again(self, rows: Rows, towards: Float[Tensor, "row width"]) -> Checked:
        """Solve rows that failed the quick check: by the shortest query for the leak, else by the exact program."""
        pattern = rows.pattern(len(self.keys))
        solved = equations(self.keys, rows)
        settle = settled(solved.base.numpy(), solved.off(towards).numpy(), self.keys.numpy(), pattern, self.accuracy)
        queries, good = self._certified(Factors(settle.queries, self.source.array), pattern)
        left = (~good).nonzero()[:, 0]
        if len(left):
            queries[left], good[left] = self._slowly(rows[left].pattern(len(self.keys)))
        return queries, good

    def _slowly(self, pattern: Pattern) -> Checked:
        return self._certified(largest_margin(pattern, self.source, self.accuracy), pattern)

    def _certified(self, factors: Factors, pattern: Pattern) -> Checked:
        head = rounded(factors, pattern, self.accuracy.dtype, "margin")
        return head.queries, certified_rows(head, pattern, self.accuracy)


@dataclass
class _Directions:
    """Cached directions. `place` has the index of each support's direction (its keys are digits in base n), or -1."""

    place: Tensor
    vectors: Tensor
