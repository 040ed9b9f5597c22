"""Sums of paths, sorted by source and number of edges; leading entries without a path are not stored.

After an attention edge no path has fewer than one edge. Instead of storing zeros, `first` counts the edges of the first
entry.
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
LEADING = 3  # number of axes of parts before the axes of the value

Constants = int | slice | None
"""The source of constants; a slice for several sources (copies of one stream), None to drop constants."""


@dataclass(frozen=True)
class Backwards:
    """The transpose of a linear function and the shape of its output, given explicitly.

    This is for functions that are too expensive to run again just to find these.
    """

    function: OnParts  # its result may have the shape to which the argument is broadcast
    shape: tuple[int, ...]


class PathSums(ABC):
    """The operations of rules on sums of paths: computed (`Sums`), or recorded to be transposed (`tape.Recorded`).

    Every operation is linear, or adds a constant.
    """

    @abstractmethod
    def through(self, function: OnParts, backwards: Backwards | None = None) -> PathSums:
        """Apply a linear function of the value's own axes to all parts. `Sums` ignores its transpose."""

    @abstractmethod
    def further(self, axis: int | None) -> PathSums:
        """Add one edge, counted on edge axis 0 or 1, or not counted if `axis` is None."""

    @abstractmethod
    def fitted(self, ndim: int) -> PathSums:
        """Insert axes of size one between the edge axes and the value's own, until the value has `ndim` axes."""

    def expanded(self, shape: tuple[int, ...]) -> PathSums:
        """Repeat axes of size one until the value has this shape."""
        return self.through(lambda p: p.expand(*p.shape[:LEADING], *shape), Backwards(lambda g: g, shape))

    @abstractmethod
    def plus(self, other: PathSums) -> PathSums:
        """Add parts of equal length; the value's own axes broadcast."""

    @abstractmethod
    def plus_constant(self, constant: Tensor, source: Constants) -> PathSums:
        """Add a path of length zero that begins here. Parts are changed in place, so they must not be shared."""

    @abstractmethod
    def beginning(self, constant: Tensor, source: Constants) -> PathSums:
        """Return only the path of length zero that begins at this constant."""

    @abstractmethod
    def joined(self, every: Sequence[PathSums], function: Callable[..., Tensor]) -> PathSums:
        """Apply one linear function to several tensors, including this one; it receives them without leading axes."""


@dataclass(frozen=True)
class Sums(PathSums):
    """Computed sums: `parts[s, i, j]` sums the paths from source s with first[0] + i attention and first[1] + j MLP
    edges.
    """

    parts: Tensor
    first: tuple[int, int] = (0, 0)

    @property
    def stop(self) -> tuple[int, int]:
        """One more than the largest numbers of attention and MLP edges."""
        return self.first[0] + self.parts.shape[1], self.first[1] + self.parts.shape[2]

    def through(self, function: OnParts, backwards: Backwards | None = None) -> Sums:
        return Sums(function(self.parts), self.first)

    def further(self, axis: int | None) -> Sums:
        if axis is None:
            return self
        return Sums(self.parts, (self.first[0] + (axis == 0), self.first[1] + (axis == 1)))

    def within(self, first: tuple[int, int], stop: tuple[int, int]) -> Parts:
        """Return the parts from `first` to `stop - 1`; entries without a path are zero."""
        if (self.first, self.stop) == (first, stop):
            return self.parts
        padded = self._empty(first, stop).zero_()
        padded[self._places(first)] = self.parts
        return padded

    @property
    def dense(self) -> Parts:
        """The parts, including leading entries without a path."""
        return self.within((0, 0), self.stop)

    def fitted(self, ndim: int) -> Sums:
        lack = ndim - (self.parts.ndim - LEADING)
        return self if lack == 0 else self.through(lambda p: p.reshape(*p.shape[:LEADING], *[1] * lack, *p.shape[3:]))

    def plus(self, other: PathSums) -> Sums:
        assert isinstance(other, Sums)
        if (self.first, self.stop) == (other.first, other.stop):
            return Sums(self.parts + other.parts, self.first)
        first, stop = span(self, other)
        shape = tuple(map(max, self.parts.shape[LEADING:], other.parts.shape[LEADING:]))  # broadcast: one of them is 1
        total = self._empty(first, stop, shape)
        low, high = sorted([self, other], key=lambda s: s.first)
        same_mlps = (self.first[1], self.stop[1]) == (other.first[1], other.stop[1])
        # If the ranges of attention edges overlap and neither contains the other, every place is written just once.
        if same_mlps and low.first[0] <= high.first[0] <= low.stop[0] <= high.stop[0]:
            begin, end = high.first[0] - first[0], low.stop[0] - first[0]
            total[:, :begin] = low.parts[:, :begin]
            total[:, begin:end] = low.parts[:, begin:] + high.parts[:, : end - begin]
            total[:, end:] = high.parts[:, end - begin :]
            return Sums(total, first)
        total.zero_()
        total[self._places(first)] = self.parts
        total[other._places(first)] += other.parts
        return Sums(total, first)

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
        first, stop = span(*sums)
        parts = [s.within(first, stop) for s in sums]
        mapped = torch.vmap(function)(*(p.flatten(0, LEADING - 1) for p in parts))
        return Sums(split_axis(mapped, 0, *parts[0].shape[:LEADING]), first)

    def _empty(self, first: tuple[int, int], stop: tuple[int, int], shape: tuple[int, ...] | None = None) -> Tensor:
        own = self.parts.shape[LEADING:] if shape is None else shape
        return self.parts.new_empty(self.parts.shape[0], stop[0] - first[0], stop[1] - first[1], *own)

    def _places(self, first: tuple[int, int]) -> tuple[slice, ...]:
        starts = (self.first[0] - first[0], self.first[1] - first[1])
        return (slice(None), *(slice(s, s + n) for s, n in zip(starts, self.parts.shape[1:3], strict=True)))


def span(*every: Sums) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the smallest number of edges over all sums, and one more than the largest."""
    first = (min(s.first[0] for s in every), min(s.first[1] for s in every))
    return first, (max(s.stop[0] for s in every), max(s.stop[1] for s in every))


def split_axis(tensor: Tensor, axis: int, *sizes: int) -> Tensor:
    """Reshape one axis into several."""
    axis %= tensor.ndim
    return tensor.reshape(*tensor.shape[:axis], *sizes, *tensor.shape[axis + 1 :])


class Deferred:
    """Sums that are computed on first use; the sums of queries and keys are never used."""

    def __init__(self, make: Callable[[], PathSums]) -> None:
        self._make: Callable[[], PathSums] | None = make
        self._made: PathSums | None = None

    def __call__(self) -> PathSums:
        if self._made is None:
            assert self._make is not None
            self._made, self._make = self._make(), None  # releases the closure's tensors
        return self._made
