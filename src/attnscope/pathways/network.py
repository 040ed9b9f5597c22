"""A network at one input: the streams between its blocks, and each block as a function of a graded stream.

Path decompositions need nothing else from a model. Blocks run the model's own code and freeze values of the graded
stream, so a block must be given the stream that actually entered it.
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

GATE, DENOMINATOR = "gate of an activation", "denominator of a norm"
EXPENSIVE = frozenset(
    ["linear", "addmm", "scaled_dot_product_attention", "matmul", "__matmul__", "bmm", "einsum", GATE, DENOMINATOR]
)


@dataclass
class BlockCache:
    """The expensive values of one block (products with weights, attention, gates, denominators), kept from its first
    run.

    A block of a network always runs on the same stream, so its values come in the same order: `kept[i]` is the name of
    the i-th function, its tensor, and the tensor's version. A tensor that the model has changed in place is computed
    again. Patterns of fused attention may be needed only after the block has run, so they are kept separately, by call.
    """

    kept: list[tuple[str, Tensor | None, int]] = field(default_factory=list)
    next_value: int = 0
    patterns: list[list[Tensor]] = field(default_factory=list)  # one list per call: empty, or with the pattern
    next_call: int = 0
    largest: int = 0  # most entries of a tensor to keep; token-by-token maps have more

    def value(self, name: str, compute: Callable[[], Tensor]) -> Tensor:
        index, self.next_value = self.next_value, self.next_value + 1
        if index < len(self.kept):
            known, value, version = self.kept[index]
            if known == name and value is not None and value._version == version:
                return value
        value = compute()
        # An inference tensor has no version, so changes to it would go unnoticed.
        worth = not value.is_inference() and value.numel() <= self.largest
        self.kept[index : index + 1] = [(name, value, value._version) if worth else (name, None, 0)]
        return value

    def pattern(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Return a function that gives the pattern of the next attention call, computed at most once if small."""
        call, self.next_call, largest = self.next_call, self.next_call + 1, self.largest
        if call == len(self.patterns):
            self.patterns.append([])
        slot = self.patterns[call]

        def pattern() -> Tensor:
            if slot:
                return slot[0]
            made = compute()
            if made.numel() <= largest and not made.is_inference():
                slot.append(made)
            return made

        return pattern


_cache: ContextVar[BlockCache | None] = ContextVar("cache", default=None)


@contextmanager
def caching(cache: BlockCache, stream: Tensor) -> Iterator[None]:
    """Inside the context, take expensive values of followed tensors from `cache`, or store them in it.

    `stream` enters the block; tensors of more than eight times its size are not kept.
    """
    cache.next_value, cache.next_call, cache.largest = 0, 0, 8 * stream.numel()
    token = _cache.set(cache)
    try:
        yield
    finally:
        _cache.reset(token)


def cached(name: str, compute: Callable[[], Any]) -> Any:
    """Return the result of `compute`, or the one stored in the block's first run."""
    cache = _cache.get()
    return compute() if cache is None or name not in EXPENSIVE else cache.value(name, compute)


def cached_pattern(compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
    cache = _cache.get()
    return compute if cache is None else cache.pattern(compute)


Piece = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Network:
    """A model at one input: `streams[l]` enters block l, `streams[-1]` leaves the last; `tail` computes the output."""

    name: str
    streams: tuple[Float[Tensor, "batch token width"], ...]
    blocks: tuple[Piece, ...]
    tail: Piece
    output: Tensor
    apart: float = math.nan  # the largest of `differences`, if they were computed
    caches: dict[int, BlockCache] = field(default_factory=lambda: defaultdict(BlockCache), compare=False, repr=False)

    @property
    def layers(self) -> int:
        return len(self.blocks)

    def block(self, layer: int, stream: Graded) -> Graded:
        """Run the block with index `layer`, frozen at this input, on the parts of `stream`."""
        own = stream.made(self.streams[layer], stream.deferred)
        with caching(self.caches[layer], self.streams[layer]):
            answer = followed(self.blocks[layer](own), f"block {layer} of {self.name}")
            answer.deferred()  # computed here, so that tensors frozen in the block can be freed
        return answer

    def finish(self, stream: Graded) -> Graded:
        return followed(self.tail(stream), f"what follows the last block of {self.name}")

    @property
    def without_tail(self) -> Network:
        """Return the same network without its tail."""
        return replace(self, tail=lambda stream: stream, output=self.streams[-1])

    def entering(self, count: Count = "attention", sources: bool = True) -> Graded:
        return Graded.entering(self.streams[0], count, sources)


def followed(answer: Tensor, where: str) -> Graded:
    """Return the answer if it is still a sum of paths; otherwise refuse and name the function that is not linear."""
    if isinstance(answer, Graded):
        return answer
    cause = f"'{answer.origin}' is not linear and has no rule" if isinstance(answer, Frozen) else "the stream was lost"
    raise RefusalError(f"The paths through {where} cannot be followed ({cause}): choose another model or stack.")


def differences(network: Network) -> tuple[float, ...]:
    """Return the error of the linear network at the output of every block and of the tail.

    It is the largest difference divided by the largest entry. Constants are a separate source; otherwise a constant
    added to every part by mistake would not show.
    """
    found = []
    for layer in range(network.layers):
        left = network.block(layer, Graded.entering(network.streams[layer], "none"))
        found.append(relative_difference(left.parts.sum((0, 1, 2)), network.streams[layer + 1]))
    last = network.finish(Graded.entering(network.streams[-1], "none"))
    return (*found, relative_difference(last.parts.sum((0, 1, 2)), network.output))


def relative_difference(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max() / (other.abs().max() + 1e-30))


T = TypeVar("T")


@dataclass(frozen=True)
class Edges:
    """The edges of one block: how many heads and MLPs it has, and whether a path can skip its heads."""

    heads: int
    mlps: int
    skip: bool


def edges(network: Network) -> tuple[Edges, ...]:
    """Return the edges of every block."""
    return tuple(edges_of(network, layer) for layer in range(network.layers))


@torch.no_grad()
def edges_of(network: Network, layer: int) -> Edges:
    """Return the edges of one block, found by running it."""
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
        only_attention(heads, network, layer)
    return Edges(sum(heads), len(mlps), through.sums.first[0] == 0)


def number_of_paths(network: Network, blocks: tuple[Edges, ...] | None = None) -> tuple[int, ...]:
    """Return how many paths of each length begin at the input: C(L, k) H^k if every block has a skip and H heads.

    These are the coefficients of prod_l (s_l + H_l t): at block l a path takes the skip (s_l = 1, or 0 if it is cut) or
    one of H_l heads. `blocks` are the edges of the network, if known.
    """
    counts = [1]
    for block in edges(network) if blocks is None else blocks:
        longer = [0, *(count * block.heads for count in counts)]
        counts = [a * block.skip + b for a, b in zip([*counts, 0], longer, strict=True)]
    return tuple(counts)


def scale_heads(factors: Callable[[int], Float[Tensor, "source head"]], network: Network) -> Watch:
    """Return a watch on attention that multiplies the output of every head by `factors(heads)`."""

    def watch(mixed: Graded, pattern: Tensor) -> Graded:
        sums, merged = mixed.deferred, mixed.value.ndim == 3
        batch = network.streams[0].shape[0]

        def times(parts: Tensor) -> Tensor:
            apart = split_axis(parts, LEADING, batch, -1) if merged else parts
            scaled = apart * factors(apart.shape[LEADING + 1])[:, None, None, None, :, None, None]
            return scaled.flatten(LEADING, LEADING + 1) if merged else scaled

        transposed = Backwards(times, tuple(mixed.value.shape))  # a diagonal matrix is its own transpose
        return mixed.made(mixed.value, lambda: sums().through(times, transposed))

    return watch


def only_attention(seen: list[T], network: Network, layer: int) -> T:
    if len(seen) != 1:
        raise RefusalError(
            f"Block {layer} of {network.name} mixes tokens {len(seen)} times (two attentions, or a state space beside "
            "one), and values of heads need one attention a block: choose another model."
        )
    return seen[0]


def split_heads(
    mixed: Float[Tensor, "before *merged token channel"], network: Network
) -> Float[Tensor, "before batch head token channel"]:
    """Return the tensor with separate axes for batch and heads, even if the model merges them."""
    return mixed if mixed.ndim == 5 else split_axis(mixed, 1, network.streams[0].shape[0], -1)
