"""A network at one input: the streams between its blocks, and each block as a function of a graded stream.

This is all that path decompositions need to know of a model. Blocks run the model's own code; what they freeze they
take from the value that the graded stream carries, so a block must be given the stream that really entered it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.pathways.graded import Count, Frozen, Graded, Watch, watching
from attnscope.pathways.sums import LEADING, Backwards, split_axis

# Values of one block, kept from its first run: a block of a network always runs on the same stream.
#
# Only what is expensive is kept (products with weights, attention, gates, denominators), in the order in which it is
# computed. A tensor that the model has changed in place since is computed again.
#
# Patterns of fused attention are made when they are first asked for, which may be after the block has run: they lie in
# places of their own, handed out in the order of the calls. Nothing of the model's writes into them.

GATE, DENOMINATOR = "gate of an activation", "denominator of a norm"
EXPENSIVE = frozenset(
    ["linear", "addmm", "scaled_dot_product_attention", "matmul", "__matmul__", "bmm", "einsum", GATE, DENOMINATOR]
)


@dataclass
class Memory:
    """`kept[i]` is the i-th expensive value of the block: the function's name, the tensor, and its version."""

    kept: list[tuple[str, Tensor | None, int]] = field(default_factory=list)
    asked: int = 0
    patterns: list[list[Tensor]] = field(default_factory=list)  # by call; empty, or the pattern
    calls: int = 0
    largest: int = 0  # entries of a tensor worth keeping: maps of all tokens by all tokens are not

    def value(self, name: str, compute: Callable[[], Tensor]) -> Tensor:
        index, self.asked = self.asked, self.asked + 1
        if index < len(self.kept):
            known, value, version = self.kept[index]
            if known == name and value is not None and value._version == version:
                return value
        value = compute()
        # An inference tensor has no version to tell whether it was changed.
        worth = not value.is_inference() and value.numel() <= self.largest
        self.kept[index : index + 1] = [(name, value, value._version) if worth else (name, None, 0)]
        return value

    def pattern(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """The pattern of the next attention call, when it is asked for."""
        call, self.calls, largest = self.calls, self.calls + 1, self.largest
        if call == len(self.patterns):
            self.patterns.append([])
        place = self.patterns[call]

        def known() -> Tensor:
            if place:
                return place[0]
            made = compute()
            if made.numel() <= largest and not made.is_inference():
                place.append(made)
            return made

        return known


_memory: ContextVar[Memory | None] = ContextVar("memory", default=None)


@contextmanager
def remembering(memory: Memory, largest: int) -> Iterator[None]:
    """Inside, expensive values of followed tensors come from `memory`, or go into it."""
    memory.asked, memory.calls, memory.largest = 0, 0, largest
    token = _memory.set(memory)
    try:
        yield
    finally:
        _memory.reset(token)


def remembered(name: str, compute: Callable[[], Any]) -> Any:
    """What `compute` gives, or gave when the block ran first."""
    memory = _memory.get()
    return compute() if memory is None or name not in EXPENSIVE else memory.value(name, compute)


def remembered_pattern(compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """`compute` for one attention call of the block, run once in the life of its memory where the map is small."""
    memory = _memory.get()
    return compute if memory is None else memory.pattern(compute)


Piece = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Network:
    """`streams[l]` enters block l, `streams[-1]` leaves the last, and `tail` makes the output of it."""

    name: str
    streams: tuple[Float[Tensor, "batch token width"], ...]
    blocks: tuple[Piece, ...]
    tail: Piece
    output: Tensor
    apart: float = math.nan  # the largest of `differences`, where they were looked at
    memories: dict[int, Memory] = field(default_factory=lambda: defaultdict(Memory), compare=False, repr=False)

    @property
    def layers(self) -> int:
        return len(self.blocks)

    def block(self, layer: int, stream: Graded) -> Graded:
        """Block `layer`, frozen where the model was, on the parts of `stream`."""
        own = stream.made(self.streams[layer], stream.deferred)
        with remembering(self.memories[layer], largest=8 * self.streams[layer].numel()):
            answer = followed(self.blocks[layer](own), f"block {layer} of {self.name}")
            answer.deferred()  # here, so that what the block froze can be let go
        return answer

    def finish(self, stream: Graded) -> Graded:
        return followed(self.tail(stream), f"what follows the last block of {self.name}")

    @property
    def without_tail(self) -> Network:
        """The same, ending where the last block ends."""
        return replace(self, tail=_nothing_more, output=self.streams[-1])

    def entering(self, count: Count = "attention", sources: bool = True) -> Graded:
        return Graded.entering(self.streams[0], count, sources)


def _nothing_more(stream: Tensor) -> Tensor:
    return stream


def followed(answer: Tensor, where: str) -> Graded:
    """The answer, if it is still a sum of paths; a refusal that names the function that ended it otherwise."""
    if isinstance(answer, Graded):
        return answer
    cause = f"'{answer.origin}' is not linear and has no rule" if isinstance(answer, Frozen) else "the stream was lost"
    raise RefusalError(f"The paths through {where} cannot be followed ({cause}): choose another model or stack.")


def differences(network: Network) -> tuple[float, ...]:
    """Does the linear network give the output of every block, and of what follows them? Largest differences relative
    to the largest entry. Constants stand apart: what is added to every part by mistake would not show in one."""
    found = []
    for layer in range(network.layers):
        left = network.block(layer, Graded.entering(network.streams[layer], "none"))
        found.append(relative_difference(left.parts.sum((0, 1, 2)), network.streams[layer + 1]))
    last = network.finish(Graded.entering(network.streams[-1], "none"))
    return (*found, relative_difference(last.parts.sum((0, 1, 2)), network.output))


def relative_difference(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max() / (other.abs().max() + 1e-30))


# The edges of a network: how many heads and MLPs each block has, and multiplying what passes through them.

T = TypeVar("T")


@dataclass(frozen=True)
class Edges:
    """Of one block: heads of its attention (zero: it has none), how many MLPs it has, and whether a path can pass it
    without a head."""

    heads: int
    mlps: int
    skip: bool


@torch.no_grad()
def edges(network: Network) -> tuple[Edges, ...]:
    """What each block passes the stream through, found by running it."""
    return tuple(_edges_of(network, layer) for layer in range(network.layers))


def _edges_of(network: Network, layer: int) -> Edges:
    heads: list[int] = []
    mlps: list[int] = []

    def attention(mixed: Graded, pattern: Tensor) -> None:
        value = mixed.value
        heads.append(value.shape[1] if value.ndim == 4 else value.shape[0] // network.streams[0].shape[0])

    def mlp(activated: Graded, gate: Tensor) -> None:
        mlps.append(1)

    stream = network.streams[layer]
    with watching(attention), watching(mlp, "mlp"):
        through = network.block(layer, Graded.of(stream, stream[None, None, None], None, "attention"))
    if len(heads) > 1:
        one_attention(heads, network, layer)
    return Edges(sum(heads), len(mlps), through.sums.first[0] == 0)


def number_of_paths(network: Network, blocks: tuple[Edges, ...] | None = None) -> tuple[int, ...]:
    """How many paths of each length begin at the input: C(L, k) H^k where every block has a skip and H heads.

    The coefficients of prod_l (s_l + H_l t): at block l a path takes the skip (s_l = 1, or 0 where it is cut) or one of
    H_l heads. `blocks` are the edges of the network, where they are known.
    """
    counts = [1]
    for block in edges(network) if blocks is None else blocks:
        longer = [0, *(count * block.heads for count in counts)]
        counts = [a * block.skip + b for a, b in zip([*counts, 0], longer, strict=True)]
    return tuple(counts)


def multiplied(factors: Callable[[int], Float[Tensor, "source head"]], network: Network) -> Watch:
    """A watch on attention that multiplies the write of every head by a factor of its own in every source;
    `factors(heads)` says which."""

    def watch(mixed: Graded, pattern: Tensor) -> Graded:
        sums, merged = mixed.deferred, mixed.value.ndim == 3
        batch = network.streams[0].shape[0]

        def times(parts: Tensor) -> Tensor:
            apart = split_axis(parts, LEADING, batch, -1) if merged else parts
            scaled = apart * factors(apart.shape[LEADING + 1])[:, None, None, None, :, None, None]
            return scaled.flatten(LEADING, LEADING + 1) if merged else scaled

        transposed = Backwards(times, tuple(mixed.value.shape))  # a diagonal matrix is its own
        return mixed.made(mixed.value, lambda: sums().through(times, transposed))

    return watch


def one_attention(seen: list[T], network: Network, layer: int) -> T:
    if len(seen) != 1:
        raise RefusalError(
            f"Block {layer} of {network.name} mixes tokens {len(seen)} times (two attentions, or a state space beside "
            "one), and values of heads need one attention a block: choose another model."
        )
    return seen[0]


def heads_apart(
    mixed: Float[Tensor, "before *merged token channel"], network: Network
) -> Float[Tensor, "before batch head token channel"]:
    """Batch and heads as two axes, where the model computes with them as one."""
    return mixed if mixed.ndim == 5 else split_axis(mixed, 1, network.streams[0].shape[0], -1)
