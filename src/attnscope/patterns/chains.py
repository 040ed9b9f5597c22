"""The keys of a pattern whose rows have one or two of them, as chains: paths and cycles of keys that share a query.

A row with the keys a, b is an edge between them. Where no key has more than two different partners (a union of two
permutations, a window of two, with its keys in any order), the keys fall apart into paths and closed cycles, and what
is asked of a head is a question about how these lie in space.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from attnscope.patterns.pattern import Pattern


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
