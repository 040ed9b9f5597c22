"""Sums of paths, sorted by where they begin and how many edges they have, without storing places that have no path.

After an attention edge no path has fewer than one edge: instead of a block of zeros, `first` says how many edges the
first place stands for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

Parts = Float[Tensor, "source attention mlp *shape"]
OnParts = Callable[[Tensor], Tensor]
LEADING = 3  # axes of parts before the value's own

Constants = int | slice | None
"""The source that constants belong to; a slice: every one of these (they are copies of one stream); None: dropped."""


@dataclass(frozen=True)
class Backwards:
    """A linear function's transpose, written out, and the shape of what the function gives: for functions that cost so
    much that running them once more to find these would show."""

    function: OnParts  # may be in the shape that the argument is broadcast to
    shape: tuple[int, ...]


class PathSums(ABC):
    """What rules do to sums of paths: with numbers (`Sums`), or written down to be undone backwards (`tape.Recorded`).

    Everything here is linear, or adds a constant.
    """

    @abstractmethod
    def through(self, function: OnParts, backwards: Backwards | None = None) -> PathSums:
        """A linear function of the value's own axes, applied to all parts. Numbers do not need its transpose."""

    @abstractmethod
    def further(self, axis: int | None) -> PathSums:
        """After one more edge, which counts on edge axis 0 or 1, or not at all."""

    @abstractmethod
    def fitted(self, ndim: int) -> PathSums:
        """Room for broadcasting: axes of size one between the edge axes and the value's own."""

    def expanded(self, shape: tuple[int, ...]) -> PathSums:
        """Axes of one entry repeated until the value has this shape."""
        return self.through(lambda p: p.expand(*p.shape[:LEADING], *shape), Backwards(lambda g: g, shape))

    @abstractmethod
    def plus(self, other: PathSums) -> PathSums:
        """Parts of equal length added; the value's own axes broadcast."""

    @abstractmethod
    def plus_constant(self, constant: Tensor, source: Constants) -> PathSums:
        """A path of length zero begins here. Parts are changed in place: only for parts that nobody else holds."""

    @abstractmethod
    def beginning(self, constant: Tensor, source: Constants) -> PathSums:
        """That path alone."""

    @abstractmethod
    def joined(self, every: Sequence[PathSums], function: Callable[..., Tensor]) -> PathSums:
        """One linear function of several tensors, of which this is one, given without the leading axes."""


@dataclass(frozen=True)
class Sums(PathSums):
    """`parts[s, i, j]` sums the paths from source s with first[0] + i attention and first[1] + j MLP edges."""

    parts: Tensor
    first: tuple[int, int] = (0, 0)

    @property
    def ends(self) -> tuple[int, int]:
        return self.first[0] + self.parts.shape[1], self.first[1] + self.parts.shape[2]

    def through(self, function: OnParts, backwards: Backwards | None = None) -> Sums:
        return Sums(function(self.parts), self.first)

    def further(self, axis: int | None) -> Sums:
        if axis is None:
            return self
        return Sums(self.parts, (self.first[0] + (axis == 0), self.first[1] + (axis == 1)))

    def within(self, first: tuple[int, int], ends: tuple[int, int]) -> Parts:
        """The parts from `first` up to before `ends`; places that have no path are zero."""
        if (self.first, self.ends) == (first, ends):
            return self.parts
        room = self._room(first, ends).zero_()
        room[self._places(first)] = self.parts
        return room

    @property
    def dense(self) -> Parts:
        """The parts from zero edges on."""
        return self.within((0, 0), self.ends)

    def fitted(self, ndim: int) -> Sums:
        lack = ndim - (self.parts.ndim - LEADING)
        return self if lack == 0 else self.through(lambda p: p.reshape(*p.shape[:LEADING], *[1] * lack, *p.shape[3:]))

    def plus(self, other: PathSums) -> Sums:
        assert isinstance(other, Sums)
        if (self.first, self.ends) == (other.first, other.ends):
            return Sums(self.parts + other.parts, self.first)
        first, ends = span(self, other)
        shape = tuple(map(max, self.parts.shape[LEADING:], other.parts.shape[LEADING:]))  # broadcast: one of them is 1
        room = self._room(first, ends, shape)
        if self._touch(other):  # one source of paths is longer than the other: every place is written at least once
            low, high = sorted([self, other], key=lambda s: s.first)
            start, stop = high.first[0] - first[0], low.ends[0] - first[0]
            room[:, :start] = low.parts[:, :start]
            room[:, start:stop] = low.parts[:, start:] + high.parts[:, : stop - start]
            room[:, stop:] = high.parts[:, stop - start :]
            return Sums(room, first)
        room.zero_()
        room[self._places(first)] = self.parts
        room[other._places(first)] += other.parts
        return Sums(room, first)

    def plus_constant(self, constant: Tensor, source: Constants) -> Sums:
        if source is None:
            return self
        grown = self if self.first == (0, 0) else Sums(self.dense)
        grown.parts[source, 0, 0] += constant
        return grown

    def beginning(self, constant: Tensor, source: Constants) -> Sums:
        empty = constant.new_zeros((self.parts.shape[0], 1, 1, *constant.shape))
        return Sums(empty).plus_constant(constant, source)

    def joined(self, every: Sequence[PathSums], function: Callable[..., Tensor]) -> Sums:
        sums = [one for one in every if isinstance(one, Sums)]
        start, ends = span(*sums)
        parts = [s.within(start, ends) for s in sums]
        mapped = torch.vmap(function)(*(p.flatten(0, LEADING - 1) for p in parts))
        return Sums(split_axis(mapped, 0, *parts[0].shape[:LEADING]), start)

    def _touch(self, other: Sums) -> bool:
        """Whether both have the same MLP edges, and attention edges that overlap without one holding the other."""
        low, high = sorted([self, other], key=lambda s: s.first)
        same = (self.first[1], self.ends[1]) == (other.first[1], other.ends[1])
        return same and low.first[0] <= high.first[0] <= low.ends[0] <= high.ends[0]

    def _room(self, first: tuple[int, int], ends: tuple[int, int], shape: tuple[int, ...] | None = None) -> Tensor:
        own = self.parts.shape[LEADING:] if shape is None else shape
        return self.parts.new_empty(self.parts.shape[0], ends[0] - first[0], ends[1] - first[1], *own)

    def _places(self, first: tuple[int, int]) -> tuple[slice, ...]:
        starts = (self.first[0] - first[0], self.first[1] - first[1])
        return (slice(None), *(slice(s, s + n) for s, n in zip(starts, self.parts.shape[1:3], strict=True)))


def span(*every: Sums) -> tuple[tuple[int, int], tuple[int, int]]:
    """The fewest edges of any, and one more than the most."""
    first = (min(s.first[0] for s in every), min(s.first[1] for s in every))
    return first, (max(s.ends[0] for s in every), max(s.ends[1] for s in every))


def split_axis(tensor: Tensor, axis: int, *sizes: int) -> Tensor:
    """One axis as several."""
    axis %= tensor.ndim
    return tensor.reshape(*tensor.shape[:axis], *sizes, *tensor.shape[axis + 1 :])


class Deferred:
    """Sums that are computed when they are first asked for: queries and keys are never asked."""

    def __init__(self, make: Callable[[], PathSums]) -> None:
        self._make: Callable[[], PathSums] | None = make
        self._made: PathSums | None = None

    def __call__(self) -> PathSums:
        if self._made is None:
            assert self._make is not None
            self._made, self._make = self._make(), None  # what it was made of is let go
        return self._made
