"""Remove repetitions from a pattern, and turn a head for the smaller pattern into a head for the whole one.

Three things can be removed before the search for a head, and put back into its queries and keys afterwards:

*Equal rows and equal columns.* Equal rows share a query and equal columns a key, so the width is unchanged. The smaller
pattern keeps one of several equal columns with its own weight, so proportions do not change. A key off a row's support
then leaks once for each copy, a key on it gains once for each copy, so a row leaks at most (most copies / fewest) times
as much.

*A key u in every row* costs one coordinate. Give it 1 in a new coordinate and 0 in all others; every other key has 0 in
the new coordinate. In the smaller head, c = s_j - ln A_j is the same for all other keys j of a row's support. With t =
c + ln A_u in the new coordinate of the query, u has the logit t and the right proportion to all others; no other logit
changes, and a row leaks less than before. A row whose only key is u has a query with only that coordinate.

*The order of keys.* Where keys form one closed chain, or chains that are all open (`chains`), there is an order in
which the keys of every row are neighbours, as on a circle.

Under a causal mask the order of keys matters, so only a first key which every row attends to is removed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
from jaxtyping import Float, Int

from attnscope.heads.pattern import Pattern

Both = tuple[Float[np.ndarray, "every_row wider"], Float[np.ndarray, "every_key wider"]]
Lift = Callable[[np.ndarray, np.ndarray], Both]
ROOM = 2.0  # nats beyond the leak's requirement, for a row whose only key is the one in every row


@dataclass(frozen=True)
class Chain:
    """A path or cycle of keys, each of which shares a query with the next; `closed` if it has three or more keys and
    the last shares a query with the first.

    A key that shares no query is a chain by itself.
    """

    keys: tuple[int, ...]
    closed: bool

    def __len__(self) -> int:
        return len(self.keys)


def chains(pattern: Pattern) -> tuple[Chain, ...] | None:
    """Return all keys as chains. Return None if a row has three keys or a key has three partners.

    A row with the keys a, b is an edge between them. Where no key has more than two different partners (a union of two
    permutations, a window of two, with its keys in any order), the keys split into paths and cycles.
    """
    if pattern.k > 2:
        return None
    partners: list[list[int]] = [[] for _ in range(pattern.n_keys)]
    for start in pattern.starts[:-1][pattern.counts == 2]:
        a, b = (int(key) for key in pattern.columns[start : start + 2])
        if b not in partners[a]:
            partners[a].append(b)
            partners[b].append(a)
            if max(len(partners[a]), len(partners[b])) > 2:
                return None
    left = set(range(pattern.n_keys))
    ends = [key for key in range(pattern.n_keys) if len(partners[key]) < 2]
    walks = ((False, ends), (True, range(pattern.n_keys)))  # paths from their ends first; the rest are cycles
    return tuple(
        Chain(tuple(_walk(start, partners, left)), closed)
        for closed, starts in walks
        for start in starts
        if start in left
    )


def _walk(start: int, partners: list[list[int]], left: set[int]) -> Iterator[int]:
    here: int | None = start
    while here is not None:
        left.remove(here)
        yield here
        here = next((key for key in partners[here] if key in left), None)


@dataclass(frozen=True, eq=False)
class Reduction:
    """The smaller pattern, the leak allowed in its rows, and how many coordinates are added on the way back."""

    pattern: Pattern
    leak: float
    extra: int = 0
    steps: tuple[tuple[str, Lift], ...] = ()  # description, and the inverse step

    def lifted(self, queries: Float[np.ndarray, "row width"], keys: Float[np.ndarray, "key width"]) -> Both:
        """Turn queries and keys for the smaller pattern into queries and keys for the whole one."""
        for _, back in reversed(self.steps):
            queries, keys = back(queries, keys)
        return queries, keys

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(words for words, _ in self.steps)

    def then(self, pattern: Pattern, words: str, back: Lift, leak: float | None = None, extra: int = 0) -> Reduction:
        leak = self.leak if leak is None else leak
        return Reduction(pattern, leak, self.extra + extra, (*self.steps, (words, back)))


def reduced(pattern: Pattern, leak: float) -> Reduction:
    """Remove everything that can be removed; leave the pattern unchanged if nothing can."""
    reduction = Reduction(pattern, leak)
    before = None
    while before is not reduction:
        before = reduction
        reduction = _without_key_in_every_row(_merged(reduction))
    return _ordered(reduction)


def _merged(before: Reduction) -> Reduction:
    pattern = before.pattern
    if pattern.causal:
        return before
    sparse = pattern.sparse()
    row_of, rows = _alike(sparse.indptr, sparse.indices, sparse.data)
    columns = sparse.tocsc()
    key_of, keys = _alike(columns.indptr, columns.indices, columns.data)
    if len(rows) == pattern.n and len(keys) == pattern.n_keys:
        return before
    smaller = pattern.part(rows, keys)
    copies = np.bincount(key_of)
    used = copies[np.unique(smaller.columns)]
    words = f"{pattern.n - len(rows)} rows and {pattern.n_keys - len(keys)} keys are equal to others"
    leak = before.leak * float(used.min() / copies.max())
    return before.then(smaller, words, lambda queries, keys: (queries[row_of], keys[key_of]), leak)


def _alike(
    starts: Int[np.ndarray, " one_more"], places: Int[np.ndarray, " entry"], values: Float[np.ndarray, " entry"]
) -> tuple[Int[np.ndarray, " line"], Int[np.ndarray, " different"]]:
    """Group equal rows of a sparse matrix. Return the group of each row, and the first row of each group."""
    known: dict[bytes, int] = {}
    first: list[int] = []
    which = np.empty(len(starts) - 1, dtype=np.int64)
    for line, (a, b) in enumerate(pairwise(starts)):
        content = places[a:b].astype(np.int64).tobytes() + values[a:b].tobytes()
        if content not in known:
            known[content] = len(first)
            first.append(line)
        which[line] = known[content]
    return which, np.array(first)


def _without_key_in_every_row(before: Reduction) -> Reduction:
    pattern = before.pattern
    everywhere = np.flatnonzero(np.bincount(pattern.columns, minlength=pattern.n_keys) == pattern.n)
    if not len(everywhere) or pattern.k == 1 or (pattern.causal and everywhere[0] != 0):
        return before
    key = int(everywhere[0])
    rows = np.flatnonzero(pattern.counts > 1)
    if pattern.causal:
        rows = np.arange(1, pattern.n)  # row i then sees keys 1..i: causal again, if every row has one of them
        if (pattern.counts[1:] < 2).any() or pattern.n < 2:
            return before
    smaller = pattern.part(rows, np.arange(pattern.n_keys) != key)
    back = partial(_with_key, pattern=pattern, key=key, rows=rows, leak=before.leak)
    return before.then(smaller, f"key {key} stands in every row", back, extra=1)


def _with_key(
    queries: np.ndarray, keys: np.ndarray, *, pattern: Pattern, key: int, rows: np.ndarray, leak: float
) -> Both:
    width = keys.shape[1]
    all_keys = np.zeros((pattern.n_keys, width + 1))
    all_keys[np.arange(pattern.n_keys) != key, :width] = keys
    all_keys[key, width] = 1.0
    all_queries = np.zeros((pattern.n, width + 1))
    all_queries[rows, :width] = queries
    logits = np.einsum("ed,ed->e", all_queries[pattern.rows], all_keys[pattern.columns])
    level = logits - np.log(pattern.weights)
    rest = pattern.columns != key
    total = np.bincount(pattern.rows[rest], weights=level[rest], minlength=pattern.n)
    share = np.log(pattern.weights[~rest])  # one entry per row, in the order of rows
    alone = math.log(pattern.n_keys / leak) + ROOM
    all_queries[:, width] = np.where(pattern.counts > 1, total / np.maximum(pattern.counts - 1, 1) + share, alone)
    return all_queries, all_keys


def _ordered(before: Reduction) -> Reduction:
    pattern = before.pattern
    parts = None if pattern.causal else chains(pattern)
    if parts is None or pattern.k != 2 or (len(parts) > 1 and any(part.closed for part in parts)):
        return before
    order = np.array([key for part in parts for key in part.keys])
    place = np.argsort(order)
    if (order == np.arange(pattern.n_keys)).all():
        return before
    ordered = pattern.with_entries(pattern.rows, place[pattern.columns], pattern.weights)
    words = "in another order the keys of every row are neighbours"
    return before.then(ordered, words, lambda queries, keys: (queries, keys[place]))
