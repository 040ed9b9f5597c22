"""From a census to stacks of blocks: which module calls are layers, what they are called, how deep each one
is.

A block is the outermost element of a module list whose call holds at most one self- and at most one
cross-attention: that is a layer in nearly every model, shared (one module called at every depth) or not,
with sublayers of its own or not. Blocks of one list form a stack; stacks are named by the first part of
their paths that tells them apart.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from attnscope.hf.anatomy.census import AttentionSeen, Census, ModuleCall
from attnscope.hf.seeing.tensors import Slot

_TAILS = ("_model", "_tower", "_encoder", "_decoder")


@dataclass(frozen=True)
class BlockSeen:
    """A module call that is one layer of a stack, and where the residual stream goes in and out of it."""

    stack: str
    layer: int
    path: str
    nth: int
    number: int  # of the module call in the census
    enters: Slot
    leaves: Slot
    shape: tuple[int, int, int]  # of the stream, as the module takes it
    sequence_first: bool
    overwrites: bool


@dataclass(frozen=True)
class Placed:
    """An attention call with its place in a stack; `block` is None where no stream surrounds it."""

    seen: AttentionSeen
    stack: str
    layer: int
    block: BlockSeen | None


def place(census: Census) -> tuple[Placed, ...]:
    """Every attention call with its stack, its layer, and the block around it."""
    chosen = [_block_of(seen, census) for seen in census.attention]
    containers = [
        _container(census.calls[number].path if number is not None else seen.owner)
        for number, seen in zip(chosen, census.attention, strict=True)
    ]
    streaming = dict.fromkeys(c for number, c in zip(chosen, containers, strict=True) if number is not None)
    names = stack_names(dict.fromkeys(containers)) | (stack_names(streaming) if streaming else {})
    if len(set(names.values())) < len(names):
        names = {container: ".".join(container) or "model" for container in names}
    layers: dict[str, dict[tuple[str, int], int]] = defaultdict(dict)
    placed = []
    for index, (number, container, seen) in enumerate(zip(chosen, containers, census.attention, strict=True)):
        stack = names[container]
        key = ("call", index) if number is None else ("block", number)
        layer = layers[stack].setdefault(key, len(layers[stack]))
        block = None
        if number is not None:
            block = _describe(census.calls[number], number, stack, layer, seen)
        placed.append(Placed(seen, stack, layer, block))
    return tuple(placed)


def _block_of(seen: AttentionSeen, census: Census) -> int | None:
    # Two calls within one call of their module (differential attention) are one attention of the block.
    apart = {(other.inside, other.crossing) for other in census.attention}
    held: Counter[tuple[int, bool]] = Counter((number, crossing) for inside, crossing in apart for number in inside)
    small = [n for n in seen.inside if held[n, False] <= 1 and held[n, True] <= 1]
    streaming = [n for n in small if _stream(census.calls[n]) is not None]
    for number in streaming:
        if census.calls[number].listed:
            return number
    # No list: the outermost module with a stream through it, neither the whole model nor attention itself.
    for number in streaming:
        call = census.calls[number]
        if call.path not in ("", seen.owner):
            return number
    return None


def _stream(call: ModuleCall) -> tuple[Slot, Slot, tuple[int, int, int]] | None:
    """Where a stream of tokens enters and leaves: the first input and output of the same three-axis shape."""
    for enters, shape in call.takes:
        if len(shape) == 3:
            for leaves, given in call.gives:
                if given == shape:
                    return enters, leaves, (shape[0], shape[1], shape[2])
            return None
    return None


def _describe(call: ModuleCall, number: int, stack: str, layer: int, seen: AttentionSeen) -> BlockSeen:
    stream = _stream(call)
    assert stream is not None
    enters, leaves, shape = stream
    flipped = shape[:2] == (seen.queries, seen.batch) and seen.queries != seen.batch
    return BlockSeen(stack, layer, call.path, call.nth, number, enters, leaves, shape, flipped, call.overwrites)


def _container(path: str) -> tuple[str, ...]:
    """The list a block stands in. Numbers are left out, so that stages of one tower are one stack."""
    parts = path.split(".")[:-1] if path else []
    return tuple(part for part in parts if not part.isdigit())


def stack_names(containers: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """`encoder` and `decoder`, `text` and `vision`: the first part of each path that no other one shares."""
    paths = list(containers)
    if len(paths) == 1:
        return {paths[0]: "model"}
    names: dict[tuple[str, ...], str] = {}
    for path in paths:
        others = [p for p in paths if p != path]
        shared = max(_common(path, other) for other in others)
        names[path] = path[shared] if shared < len(path) else ".".join(path) or "model"
    if len(set(names.values())) < len(paths):
        return {path: ".".join(path) or "model" for path in paths}
    short = {path: _shortened(name) for path, name in names.items()}
    return short if len(set(short.values())) == len(paths) else names


def _common(left: tuple[str, ...], right: tuple[str, ...]) -> int:
    count = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        count += 1
    return count


def _shortened(name: str) -> str:
    for tail in _TAILS:
        if name.endswith(tail) and len(name) > len(tail):
            return name[: -len(tail)]
    return name
