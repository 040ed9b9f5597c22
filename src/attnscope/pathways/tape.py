"""Adjoints carried back through a block: steps are recorded instead of computed, then transposed in reverse order.

A frozen block is a polynomial in a formal variable t that marks an edge, B(t) = B_0 + t B_1 + ..., each B_j linear. Its
transpose on adjoints that are sorted by the edges still to come, G(t) = sum_b t^b G^(b), is

    B(t)^T G(t),      coefficient of t^b:  sum_j B_j^T G^(b-j):

an edge moves an adjoint up by one, exactly as it moves a sum of paths. So the adjoint is a `Sums` too, and every step
has a transpose: a linear function its own, a sum hands the adjoint to both terms, an edge adds one place. A constant
that begins somewhere adds its product with the adjoint there, by edges still to come.

Nothing runs forward on parts. Rules write out transposes that are expensive (`Backwards`); torch finds the others, by
differentiating the function at zeros that take no memory. `pulled_slowly` runs blocks forward and differentiates: the
tape is tested against it, and rules that need actual numbers use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import reduce
from typing import NoReturn

import torch
from torch import Tensor

from attnscope.pathways.graded import Count, Edge, Graded, Watch, watching
from attnscope.pathways.network import Network
from attnscope.pathways.sums import LEADING, Backwards, Constants, OnParts, PathSums, Sums


class UnrecordedError(Exception):
    """Raised when a rule needs numbers, which a tape does not have."""


Handed = Iterator[tuple["Recorded", Sums]]


@dataclass
class Tape:
    """Steps in the order in which they were recorded. Adjoints have the dtype and device of `like`."""

    like: Tensor
    steps: list[Recorded] = field(default_factory=list)

    def step(self, shape: tuple[int, ...], back: Callable[[Sums], Handed]) -> Recorded:
        made = Recorded(self, len(self.steps), shape, back)
        self.steps.append(made)
        return made

    def zeros(self, leading: tuple[int, ...], shape: tuple[int, ...]) -> Tensor:
        return self.like.new_zeros(()).expand(*leading, *shape)

    def pulled(self, last: Recorded, adjoint: Sums, kept: Sequence[Recorded] = (), stop: bool = False) -> Pulled:
        """Carry the adjoint at `last` to the first step (with `stop`, not past `kept`). Also return the adjoints at
        `kept`.
        """
        pending: dict[int, Sums] = {last.index: adjoint}
        constants: list[Sums] = []
        wanted = {step.index for step in kept}
        at_kept: dict[int, Sums] = {}
        before = None
        for step in reversed(self.steps[: last.index + 1]):
            arrived = pending.pop(step.index, None)
            if arrived is None:
                continue
            if step.index in wanted:
                at_kept[step.index] = arrived
                if stop:
                    continue
            if step.constant is not None:
                constants.append(arrived.through(step.constant))
            if step.index == 0:
                before = arrived
                break
            for earlier, handed in step.back(arrived):
                known = pending.get(earlier.index)
                pending[earlier.index] = handed if known is None else known.plus(handed)
        return Pulled(before, _added(constants), tuple(at_kept.get(step.index) for step in kept))


@dataclass(frozen=True)
class Pulled:
    """Adjoints at the start of the tape (None if nothing arrives) and at kept steps, and contributions of constants,
    sorted by edges.
    """

    before: Sums | None
    constants: Sums | None
    kept: tuple[Sums | None, ...]
    kept_mlps: tuple[Sums | None, ...] = ()


@dataclass(frozen=True, eq=False)
class Recorded(PathSums):
    """One step: the shape of its value, and how its adjoint is passed to the steps from which it was computed."""

    tape: Tape
    index: int
    shape: tuple[int, ...]
    back: Callable[[Sums], Handed]
    constant: OnParts | None = None  # the product of an adjoint with the constant that begins here

    def __getattr__(self, name: str) -> NoReturn:
        raise UnrecordedError(name)

    def through(self, function: OnParts, backwards: Backwards | None = None) -> Recorded:
        if backwards is None:
            shape = tuple(function(self.tape.zeros((1,) * LEADING, self.shape)).shape[LEADING:])
            backwards = Backwards(self._transposed(function), shape)
        transposed = backwards.function

        def back(adjoint: Sums) -> Handed:
            yield self, adjoint.through(lambda g: summed_to(transposed(g), self.shape))

        return self.tape.step(backwards.shape, back)

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

        def product(g: Tensor) -> Tensor:  # sum over tokens first: a bias is the same for all of them
            return (summed_to(g, shape) * constant).reshape(*g.shape[:LEADING], -1).sum(-1)

        begun = Recorded(step.tape, step.index, step.shape, step.back, product)
        self.tape.steps[step.index] = begun
        return begun

    def joined(self, every: Sequence[PathSums], function: Callable[..., Tensor]) -> Recorded:
        terms = [sums for sums in every if isinstance(sums, Recorded)]
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
    """Carry an adjoint from after the block with index `layer` to before it; with `heads`, also to the output of each
    attention.
    """
    pulled = pulled_if_recorded(network, layer, adjoint, count, heads)
    return pulled_slowly(network, layer, adjoint, count) if pulled is None else pulled


def pulled_if_recorded(
    network: Network, layer: int, adjoint: Sums, count: Count, heads: bool = False, mlps: bool = False
) -> Pulled | None:
    """Do the same as `pulled_through` for any number of sources; with `mlps`, also to the output of each MLP's gate.
    Return None if a rule needs actual numbers.
    """
    try:
        return Taped.of(network, layer, count, heads, mlps).pulled(adjoint)
    except UnrecordedError:
        return None


@dataclass(frozen=True)
class Taped:
    """A recorded block: its last step, and the steps at the output of each attention and each MLP's gate."""

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
        """Carry an adjoint from after the block to before it."""
        found = self.tape.pulled(self.last, adjoint, (*self.heads, *self.mlps))
        at_heads, at_mlps = found.kept[: len(self.heads)], found.kept[len(self.heads) :]
        return Pulled(found.before, found.constants, at_heads, at_mlps)

    @torch.no_grad()
    def pulled_to_heads(self, adjoint: Sums) -> Pulled:
        """Carry an adjoint to the output of the attention, and to before the block along routes that pass no head."""
        return self.tape.pulled(self.last, adjoint, self.heads, stop=True)

    @torch.no_grad()
    def pulled_from_heads(self, adjoint: Sums) -> Sums | None:
        """Carry an adjoint from the output of the only attention to before the block."""
        return self.tape.pulled(self.heads[0], adjoint).before


def summed_to(g: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Apply the transpose of broadcasting: sum over axes that `shape` lacks or has with size one."""
    lack = g.ndim - LEADING - len(shape)
    if lack:
        g = g.sum(tuple(range(LEADING, LEADING + lack)))
    ones = [LEADING + axis for axis, size in enumerate(shape) if size == 1 and g.shape[LEADING + axis] != 1]
    return g.sum(ones, keepdim=True) if ones else g


def _added(every: list[Sums]) -> Sums | None:
    return reduce(Sums.plus, every) if every else None


def pulled_slowly(network: Network, layer: int, adjoint: Sums, count: Count) -> Pulled:
    """Carry an adjoint back by running the block forward and differentiating it: slow, but for any rule (one edge
    axis).

    A frozen block is B_0 + t B_1 + ..., plus constants c_0 + t c_1 + ... that begin in it. All adjoints G^(b) go side
    by side as sources of one stream (the block is linear: zeros will do), the derivative of part j of the answer is
    B_j^T, and the answer to a stream of zeros holds the c_j.
    """
    stream, seen = network.streams[layer], []

    def keep(mixed: Graded, pattern: Tensor) -> None:
        seen.append(mixed.sums.parts)

    after = adjoint.dense[0, :, 0]
    with torch.enable_grad(), watching(keep):
        leaf = stream.new_zeros(len(after), 1, 1, *stream.shape).requires_grad_()
        answer = network.block(layer, Graded.of(stream, leaf, None, count))
        collected: list[list[Sums]] = [[] for _ in (leaf, *seen)]
        for edges in range(answer.sums.first[0], answer.sums.stop[0]):
            part = answer.parts[:, edges, 0]
            grads = torch.autograd.grad(part, [leaf, *seen], after, retain_graph=True, allow_unused=True)
            for index, grad in enumerate(grads):
                # From the output of an attention (index >= 1), `edges - 1` more edges lead to this part of the answer.
                ahead = edges if index == 0 else max(edges - 1, 0)
                collected[index] += [] if grad is None else [Sums(grad[:, 0, 0][None, :, None], (ahead, 0))]
    before, *at_heads = map(_added, collected)
    assert None not in at_heads, "an attention whose output goes nowhere"
    with torch.no_grad():
        zeros = Graded.of(stream, torch.zeros_like(stream)[None, None, None], 0, count)
        begun = network.block(layer, zeros).parts[0, :, 0]
        products = [(after * constant).flatten(1).sum(1)[None, :, None] for constant in begun]
        constants = _added([Sums(product, (edges, 0)) for edges, product in enumerate(products)])
    return Pulled(before, constants, tuple(at_heads))
