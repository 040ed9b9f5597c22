"""What a pattern asks for beyond its repetitions: a smaller pattern, and the way back to the whole one.

Three things can be taken off before a head is sought, and put back into its queries and keys afterwards:

*Equal rows and equal columns.* Equal rows share a query, equal columns a key: the width is unchanged. The smaller
pattern keeps one column with the weight of one, so that proportions are as they were. Keys off a row's support then
count as often as they stood, keys on it too, so a row leaks at most (most copies / fewest) times as much.

*A key u in every row* costs one coordinate. Give it the new coordinate 1 and nothing else, all other keys 0 there.
For a row let c = s_j - ln A_j, the same for all j of the rest of its support, be what the smaller head gives. With t =
c + ln A_u in the new coordinate of the query, u has the logit t and the right proportion to all others; no other logit
changes, and a row leaks less than before. Rows that had u alone have only that coordinate.

*The order of keys.* Where keys form one closed chain, or chains that are all open (see `patterns.chains`), there is an
order in which the keys of every row are neighbours: the order that a circle wants.

Under a causal mask the order of keys means something, so that only a first key which every row attends to is taken off.
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

# The keys of a pattern whose rows have one or two of them, as chains: paths and cycles of keys that share a query.
#
# A row with the keys a, b is an edge between them. Where no key has more than two different partners (a union of two
# permutations, a window of two, with its keys in any order), the keys fall apart into paths and closed cycles, and what
# is asked of a head is a question about how these lie in space.


@dataclass(frozen=True)
class Chain:
    """Keys in the order in which they hang together; `closed` where the last and the first (of three or more) do too.
    A key that shares no query is a chain of its own."""

    keys: tuple[int, ...]
    closed: bool

    def __len__(self) -> int:
        return len(self.keys)


def chains(pattern: Pattern) -> tuple[Chain, ...] | None:
    """All keys as chains, or None where they are none: a row of three keys, or a key with three partners."""
    if pattern.k > 2:
        return None
    partners: list[list[int]] = [[] for _ in range(pattern.n_keys)]
    for start in pattern.starts[:-1][pattern.counts == 2]:
        one, other = (int(key) for key in pattern.columns[start : start + 2])
        if other not in partners[one]:
            partners[one].append(other)
            partners[other].append(one)
            if max(len(partners[one]), len(partners[other])) > 2:
                return None
    return tuple(_walked(partners))


def _walked(partners: list[list[int]]) -> Iterator[Chain]:
    """Paths from their ends first; what is left over are cycles."""
    left = set(range(len(partners)))
    ends = [key for key in range(len(partners)) if len(partners[key]) < 2]
    for closed, starts in ((False, ends), (True, range(len(partners)))):
        for start in starts:
            if start in left:
                yield Chain(tuple(_walk(start, partners, left)), closed)


def _walk(start: int, partners: list[list[int]], left: set[int]) -> Iterator[int]:
    here: int | None = start
    while here is not None:
        left.remove(here)
        yield here
        here = next((key for key in partners[here] if key in left), None)


Both = tuple[Float[np.ndarray, "every_row wider"], Float[np.ndarray, "every_key wider"]]
Lift = Callable[[np.ndarray, np.ndarray], Both]
ROOM = 2.0  # nats that a row with nothing but the key in every row keeps beyond what its leak asks for


@dataclass(frozen=True, eq=False)
class Reduction:
    """The smaller pattern, how many coordinates the way back costs, and what a row may leak in it."""

    pattern: Pattern
    leak: float
    extra: int = 0
    steps: tuple[tuple[str, Lift], ...] = ()  # in words, and back

    def lifted(self, queries: Float[np.ndarray, "row width"], keys: Float[np.ndarray, "key width"]) -> Both:
        """Queries and keys of the smaller pattern as those of the whole."""
        for _, back in reversed(self.steps):
            queries, keys = back(queries, keys)
        return queries, keys

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(words for words, _ in self.steps)


def reduced(pattern: Pattern, leak: float) -> Reduction:
    """Everything taken off that can be; the pattern itself where nothing can."""
    found = Reduction(pattern, leak)
    before = None
    while before is not found:
        before = found
        found = _without_key_in_every_row(_merged(found))
    return _ordered(found)


def _merged(found: Reduction) -> Reduction:
    pattern = found.pattern
    if pattern.causal:
        return found
    sparse = pattern.sparse()
    row_of, rows = _alike(sparse.indptr, sparse.indices, sparse.data)
    columns = sparse.tocsc()
    key_of, keys = _alike(columns.indptr, columns.indices, columns.data)
    if len(rows) == pattern.n and len(keys) == pattern.n_keys:
        return found
    smaller = sparse[rows][:, keys].tocoo()
    copies = np.bincount(key_of)
    used = copies[np.unique(smaller.col)]
    words = f"{pattern.n - len(rows)} rows and {pattern.n_keys - len(keys)} keys are equal to others"
    return Reduction(
        Pattern.of(smaller.row, smaller.col, smaller.data, n=len(rows), n_keys=len(keys), normalise=True),
        found.leak * float(used.min() / copies.max()),
        found.extra,
        (*found.steps, (words, lambda queries, keys: (queries[row_of], keys[key_of]))),
    )


def _alike(
    starts: Int[np.ndarray, " one_more"], places: Int[np.ndarray, " entry"], values: Float[np.ndarray, " entry"]
) -> tuple[Int[np.ndarray, " line"], Int[np.ndarray, " different"]]:
    """For every line of a sparse matrix which of the different lines it is, and where each of those stands first."""
    known: dict[bytes, int] = {}
    first: list[int] = []
    which = np.empty(len(starts) - 1, dtype=np.int64)
    for line, (a, b) in enumerate(pairwise(starts)):
        name = places[a:b].astype(np.int64).tobytes() + values[a:b].tobytes()
        if name not in known:
            known[name] = len(first)
            first.append(line)
        which[line] = known[name]
    return which, np.array(first)


def _without_key_in_every_row(found: Reduction) -> Reduction:
    pattern = found.pattern
    everywhere = np.flatnonzero(np.bincount(pattern.columns, minlength=pattern.n_keys) == pattern.n)
    if not len(everywhere) or pattern.k == 1 or (pattern.causal and everywhere[0] != 0):
        return found
    key = int(everywhere[0])
    others = np.arange(pattern.n_keys) != key
    if pattern.causal:
        rows = np.arange(1, pattern.n)  # row i then sees the keys 1..i: a causal pattern again, if each has one of them
        if (pattern.counts[1:] < 2).any() or pattern.n < 2:
            return found
    else:
        rows = np.flatnonzero(pattern.counts > 1)
    smaller = pattern.sparse()[rows][:, others].tocoo()
    whole = Pattern.of(
        smaller.row,
        smaller.col,
        smaller.data,
        n=len(rows),
        n_keys=pattern.n_keys - 1,
        causal=pattern.causal,
        normalise=True,
    )
    back = partial(_with_key, pattern=pattern, key=key, rows=rows, leak=found.leak)
    return Reduction(whole, found.leak, found.extra + 1, (*found.steps, (f"key {key} stands in every row", back)))


def _with_key(
    queries: np.ndarray,
    keys: np.ndarray,
    *,
    pattern: Pattern,
    key: int,
    rows: Int[np.ndarray, " kept"],
    leak: float,
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
    share = np.log(pattern.weights[~rest])  # one entry a row, in the order of rows
    alone = math.log(pattern.n_keys / leak) + ROOM
    all_queries[:, width] = np.where(pattern.counts > 1, total / np.maximum(pattern.counts - 1, 1) + share, alone)
    return all_queries, all_keys


def _ordered(found: Reduction) -> Reduction:
    pattern = found.pattern
    parts = None if pattern.causal else chains(pattern)
    if parts is None or pattern.k != 2 or (len(parts) > 1 and any(part.closed for part in parts)):
        return found
    order = np.array([key for part in parts for key in part.keys])
    place = np.argsort(order)
    if (order == np.arange(pattern.n_keys)).all():
        return found
    ordered = Pattern.of(
        pattern.rows, place[pattern.columns], pattern.weights, n=pattern.n, n_keys=pattern.n_keys, normalise=True
    )
    words = "in another order the keys of every row are neighbours"
    steps = (*found.steps, (words, lambda queries, keys: (queries, keys[place])))
    return Reduction(ordered, found.leak, found.extra, steps)
