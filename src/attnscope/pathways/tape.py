"""Blocks backwards: sums of paths that are not computed but written down, so that an adjoint can be carried back.

A frozen block is a polynomial in a formal variable t that marks an edge, B(t) = B_0 + t B_1 + ..., each B_j linear. Its
transpose on adjoints that are sorted by the edges still to come, G(t) = sum_b t^b G^(b), is

    B(t)^T G(t),      coefficient of t^b:  sum_j B_j^T G^(b-j):

an edge moves an adjoint one place up, exactly as it moves a sum of paths. So the adjoint is a `Sums` too, and every
step is undone by its transpose: a linear function by its own, a sum by handing the adjoint to both terms, an edge by
one place more. A constant that begins somewhere adds its product with the adjoint there, by edges still to come.

Nothing is run forward on parts. Transposes that cost much are written out where the rule is (`Backwards`); others come
from torch, by differentiating the function at zeros that take no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import NoReturn

import torch
from torch import Tensor

from attnscope.pathways.graded import Count, Edge, Graded, Watch, watching
from attnscope.pathways.network import Network
from attnscope.pathways.slow_adjoint import pulled_slowly
from attnscope.pathways.sums import LEADING, Backwards, Constants, OnParts, PathSums, Sums


class UnrecordedError(Exception):
    """A rule computes with numbers where there are none: what it does cannot be written down."""


Handed = Iterator[tuple["Recorded", Sums]]


@dataclass
class Tape:
    """Steps in the order in which they were written."""

    like: Tensor  # whose precision and place adjoints have
    steps: list[Recorded] = field(default_factory=list)

    def step(self, shape: tuple[int, ...], back: Callable[[Sums], Handed]) -> Recorded:
        made = Recorded(self, len(self.steps), shape, back)
        self.steps.append(made)
        return made

    def zeros(self, leading: tuple[int, ...], shape: tuple[int, ...]) -> Tensor:
        return self.like.new_zeros(()).expand(*leading, *shape)

    def pulled(self, last: Recorded, adjoint: Sums, kept: Sequence[Recorded] = (), stop: bool = False) -> Pulled:
        """Carry the adjoint at `last` back to the first step; adjoints at `kept` are given too, and with `stop` are
        carried no further."""
        arrived: dict[int, Sums] = {last.index: adjoint}
        constants: list[Sums] = []
        wanted = {one.index for one in kept}
        found: dict[int, Sums] = {}
        for step in reversed(self.steps[: last.index + 1]):
            mine = arrived.pop(step.index, None)
            if mine is None:
                continue
            if step.index in wanted:
                found[step.index] = mine
                if stop:
                    continue
            if step.constant is not None:
                constants.append(mine.through(step.constant))
            if step.index == 0:
                return Pulled(mine, _added(constants), tuple(found.get(one.index) for one in kept))
            for before, handed in step.back(mine):
                known = arrived.get(before.index)
                arrived[before.index] = handed if known is None else known.plus(handed)
        return Pulled(None, _added(constants), tuple(found.get(one.index) for one in kept))


@dataclass(frozen=True)
class Pulled:
    """The adjoint where the tape begins (None: nothing of it arrives), what constants add by edges still to come, and
    the adjoints that were asked for."""

    before: Sums | None
    constants: Sums | None
    kept: tuple[Sums | None, ...]
    kept_mlps: tuple[Sums | None, ...] = ()


@dataclass(frozen=True, eq=False)
class Recorded(PathSums):
    """One step: the shape of its value, and how an adjoint there is handed to the steps that it was made of."""

    tape: Tape
    index: int
    shape: tuple[int, ...]
    back: Callable[[Sums], Handed]
    constant: OnParts | None = None  # the product of an adjoint with what begins here

    def __getattr__(self, name: str) -> NoReturn:
        raise UnrecordedError(name)

    def through(self, function: OnParts, backwards: Backwards | None = None) -> Recorded:
        if backwards is None:
            shape = tuple(function(self.tape.zeros((1,) * LEADING, self.shape)).shape[LEADING:])
        else:
            shape = backwards.shape
        transposed = self._transposed(function) if backwards is None else backwards.function

        def back(adjoint: Sums) -> Handed:
            yield self, adjoint.through(lambda g: summed_to(transposed(g), self.shape))

        return self.tape.step(shape, back)

    def _transposed(self, function: OnParts) -> OnParts:
        def transposed(g: Tensor) -> Tensor:
            with torch.enable_grad():
                leaf = self.tape.zeros(tuple(g.shape[:LEADING]), self.shape).requires_grad_()
                (before,) = torch.autograd.grad(function(leaf), leaf, g)
            return before

        return transposed

    def further(self, axis: int | None) -> Recorded:
        def back(adjoint: Sums) -> Handed:
            yield self, adjoint.further(axis)

        return self.tape.step(self.shape, back)

    def expanded(self, shape: tuple[int, ...]) -> PathSums:
        return self if shape == self.shape else super().expanded(shape)

    def fitted(self, ndim: int) -> Recorded:
        lack = ndim - len(self.shape)
        wider = (*[1] * lack, *self.shape)
        return self if lack == 0 else self.through(lambda p: p.reshape(*p.shape[:LEADING], *wider))

    def plus(self, other: PathSums) -> Recorded:
        assert isinstance(other, Recorded)
        shape = tuple(map(max, self.shape, other.shape))  # broadcast: one of them is 1

        def back(adjoint: Sums) -> Handed:
            for term in (self, other):
                yield term, adjoint.through(lambda g, term=term: summed_to(g, term.shape))  # type: ignore[misc]

        return self.tape.step(shape, back)

    def plus_constant(self, constant: Tensor, source: Constants) -> Recorded:
        if source is None:
            return self

        def back(adjoint: Sums) -> Handed:
            yield self, adjoint

        return self._beginning(self.tape.step(self.shape, back), constant)

    def beginning(self, constant: Tensor, source: Constants) -> Recorded:
        begun = self.tape.step(tuple(constant.shape), lambda adjoint: iter(()))
        return begun if source is None else self._beginning(begun, constant)

    def _beginning(self, step: Recorded, constant: Tensor) -> Recorded:
        shape = tuple(constant.shape)

        def product(g: Tensor) -> Tensor:  # added up over tokens first: a bias is the same for all of them
            return (summed_to(g, shape) * constant).reshape(*g.shape[:LEADING], -1).sum(-1)

        begun = Recorded(step.tape, step.index, step.shape, step.back, product)
        self.tape.steps[step.index] = begun
        return begun

    def joined(self, every: Sequence[PathSums], function: Callable[..., Tensor]) -> Recorded:
        terms = [one for one in every if isinstance(one, Recorded)]
        shape = tuple(function(*(self.tape.zeros((), term.shape) for term in terms)).shape)

        def back(adjoint: Sums) -> Handed:
            with torch.enable_grad():
                count = adjoint.parts.shape[:LEADING].numel()
                leaves = [self.tape.zeros((count,), term.shape).requires_grad_() for term in terms]
                answer = torch.vmap(function)(*leaves)
                before = torch.autograd.grad(answer, leaves, adjoint.parts.flatten(0, LEADING - 1))
            for term, mine in zip(terms, before, strict=True):
                yield term, Sums(mine.reshape(*adjoint.parts.shape[:LEADING], *term.shape), adjoint.first)

        return self.tape.step(shape, back)


def pulled_through(network: Network, layer: int, adjoint: Sums, count: Count, heads: bool = False) -> Pulled:
    """An adjoint behind block `layer`, carried to before it; with `heads`, also to the output of each attention."""
    pulled = pulled_if_recorded(network, layer, adjoint, count, heads)
    if pulled is None:
        before, constants, at_heads = pulled_slowly(network, layer, adjoint, count)
        pulled = Pulled(before, constants, tuple(at_heads))
    return pulled


def pulled_if_recorded(
    network: Network, layer: int, adjoint: Sums, count: Count, heads: bool = False, mlps: bool = False
) -> Pulled | None:
    """The same for any number of sources, with `mlps` also to what each MLP's gate lets through; None where a rule
    needs numbers."""
    try:
        taped = Taped.of(network, layer, count, heads, mlps)
        return taped.pulled(adjoint)
    except UnrecordedError:
        return None


@dataclass(frozen=True)
class Taped:
    """A block written down: its last step, and those at the output of each attention and each MLP's gate."""

    tape: Tape
    last: Recorded
    heads: tuple[Recorded, ...]
    mlps: tuple[Recorded, ...]

    @classmethod
    @torch.no_grad()
    def of(cls, network: Network, layer: int, count: Count, heads: bool = True, mlps: bool = False) -> Taped:
        stream = network.streams[layer]
        tape = Tape(stream)
        first = tape.step(tuple(stream.shape), lambda _: iter(()))
        seen: dict[Edge, list[Recorded]] = {"attention": [], "mlp": []}

        def keeping(edge: Edge) -> Watch:
            def keep(passing: Graded, factor: Tensor) -> None:
                node = passing.deferred()
                assert isinstance(node, Recorded)
                seen[edge].append(node)

            return keep

        with (
            watching(keeping("attention")) if heads else nullcontext(),
            watching(keeping("mlp"), "mlp") if mlps else nullcontext(),
        ):
            last = network.block(layer, Graded.later(stream, lambda: first, 0, count)).deferred()
        assert isinstance(last, Recorded)
        return cls(tape, last, tuple(seen["attention"]), tuple(seen["mlp"]))

    @torch.no_grad()
    def pulled(self, adjoint: Sums) -> Pulled:
        """From behind the block to before it."""
        found = self.tape.pulled(self.last, adjoint, (*self.heads, *self.mlps))
        at_heads, at_mlps = found.kept[: len(self.heads)], found.kept[len(self.heads) :]
        return Pulled(found.before, found.constants, at_heads, at_mlps)

    @torch.no_grad()
    def pulled_to_heads(self, adjoint: Sums) -> Pulled:
        """From behind the block to the output of its attention, and to before it by ways that pass no head."""
        return self.tape.pulled(self.last, adjoint, self.heads, stop=True)

    @torch.no_grad()
    def pulled_from_heads(self, adjoint: Sums) -> Sums | None:
        """From the output of its one attention to before the block."""
        return self.tape.pulled(self.heads[0], adjoint).before


def summed_to(g: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The transpose of broadcasting: axes that the argument does not have, or has with one entry, are added up."""
    lack = g.ndim - LEADING - len(shape)
    if lack:
        g = g.sum(tuple(range(LEADING, LEADING + lack)))
    ones = [LEADING + axis for axis, size in enumerate(shape) if size == 1 and g.shape[LEADING + axis] != 1]
    return g.sum(ones, keepdim=True) if ones else g


def _added(every: list[Sums]) -> Sums | None:
    total = None
    for one in every:
        total = one if total is None else total.plus(one)
    return total
