"""Values of one block, kept from its first run: a block of a network always runs on the same stream.

Only what is expensive is kept (products with weights, attention, gates, denominators), in the order in which it is
computed. A tensor that the model has changed in place since is computed again.

Patterns of fused attention are made when they are first asked for, which may be after the block has run: they lie in
places of their own, handed out in the order of the calls. Nothing of the model's writes into them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

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
