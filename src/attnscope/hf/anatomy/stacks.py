"""Find the blocks in a call log, and group them into named stacks.

A block is the outermost element of a module list whose call contains at most one self- and one cross-attention. This
fits nearly every model, including models with shared modules or sublayers. Elements of the same list that pass on the
same stream without attention (recurrences, convolutions) are blocks too, so that block 5 of a stack is block 5 of the
model. The blocks of one list form a stack. A stack is named after the first part of its path that other stacks do not
share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from attnscope.hf.anatomy.call_log import ATTENTION, CallLog, LoggedAttention, ModuleCall, kind_of, unseen_attention
from attnscope.hf.intercepting.owners import Slot

_TAILS = ("_model", "_tower", "_encoder", "_decoder")


@dataclass(frozen=True)
class FoundBlock:
    """A module call that is one block of a stack, and where the residual stream enters and leaves it."""

    stack: str
    layer: int
    path: str
    nth: int
    enters: Slot
    leaves: Slot
    shape: tuple[int, int, int]  # shape of the stream, with the axes in the module's own order
    sequence_first: bool
    overwrites: bool
    batch: int  # batch size of its attention: sequences, or windows of sequences
    kind: str  # "attention", or what replaces it


@dataclass(frozen=True)
class PlacedCall:
    """An attention call with its stack and block number; `block` is None if no block contains it."""

    seen: LoggedAttention
    stack: str
    layer: int
    block: FoundBlock | None


@dataclass(frozen=True)
class Placement:
    """Every attention call, and every block, including those without attention."""

    sites: tuple[PlacedCall, ...]
    blocks: tuple[FoundBlock, ...]


def place_calls(log: CallLog, configured: tuple[str, ...] = ()) -> Placement:
    """Find the blocks of a model, and the stack, number and block of every attention call.

    `configured` is the configuration's list of kinds of blocks, if it has one.
    """
    chosen = [_block_of(seen, log) for seen in log.attention]
    attending = {n: seen for n, seen in zip(chosen, log.attention, strict=True) if n is not None}
    beside = _beside(log, attending)
    unseen = _unseen(log, {*attending, *beside})
    homes = {n: _home(log, n, attending) for n in (*attending, *beside, *unseen)}
    containers = [
        homes[number] if number is not None else _home_without_block(log, seen)
        for number, seen in zip(chosen, log.attention, strict=True)
    ]
    streaming = dict.fromkeys(homes[n] for n in sorted({*attending, *unseen}))
    names = stack_names(dict.fromkeys((*containers, *streaming))) | (stack_names(streaming) if streaming else {})
    if len(set(names.values())) < len(names):
        names = {container: ".".join(container) or "model" for container in names}
    blocks: dict[int, FoundBlock] = {}
    layers: dict[tuple[str, int], int] = {}
    elements = [None if n is not None else _element(log, seen) for n, seen in zip(chosen, log.attention, strict=True)]
    for stack in dict.fromkeys(names.values()):
        bare = {e for e, c in zip(elements, containers, strict=True) if e is not None and names[c] == stack}
        numbers = sorted(bare | {n for n in homes if names[homes[n]] == stack})
        for number, layer in zip(numbers, _own_numbers([log.calls[n] for n in numbers]), strict=True):
            layers[stack, number] = layer
            if number in homes:
                alike = attending.get(beside.get(number, number))
                word = configured[layer] if len(configured) == len(numbers) and layer < len(configured) else None
                kind = ATTENTION if number in attending else kind_of(log, number, word)
                blocks[number] = _described(log.calls[number], stack, layer, alike, kind)
    placed = []
    alone: Counter[str] = Counter()
    for own, element, container, seen in zip(chosen, elements, containers, log.attention, strict=True):
        stack = names[container]
        home = element if own is None else own
        layer = alone[stack] if home is None else layers[stack, home]
        alone[stack] += home is None
        placed.append(PlacedCall(seen, stack, layer, None if own is None else blocks[own]))
    return Placement(tuple(placed), tuple(blocks[number] for number in sorted(blocks)))


def _own_numbers(calls: list[ModuleCall]) -> list[int]:
    """Return block numbers: the index in the module list, or the order of calls if blocks are shared or in stages."""
    once = len({call.path for call in calls}) == len(calls)
    one_list = len({_list_of(call.path) for call in calls}) == 1
    last = [call.path.rpartition(".")[2] for call in calls]
    if once and one_list and all(part.isdigit() for part in last):
        return [int(part) for part in last]
    return list(range(len(calls)))


def _list_of(path: str) -> str:
    return path.rpartition(".")[0]


def _beside(log: CallLog, attending: dict[int, LoggedAttention]) -> dict[int, int]:
    """Return the blocks without attention, each with an attending block of the same list and stream width."""
    lists: dict[tuple[str, int | None], int] = {}
    for number in attending:
        call = log.calls[number]
        if call.listed:
            lists.setdefault((_list_of(call.path), call.around), number)
    holding = {call.around for call in log.calls}  # excludes modules without submodules, such as norms
    others = {}
    for number, call in enumerate(log.calls):
        alike = lists.get((_list_of(call.path), call.around)) if call.listed and number in holding else None
        if alike is None or number in attending:
            continue
        stream, other = _stream(call), _stream(log.calls[alike])
        if stream is not None and other is not None and stream[2] == other[2]:
            others[number] = alike
    return others


def _unseen(log: CallLog, known: set[int]) -> list[int]:
    """Return blocks whose attention was not observed. Their streams can still be measured."""
    blocks: dict[int, None] = {}
    for scope in log.loose:
        if known.isdisjoint(scope):
            block = next((n for n in scope if log.calls[n].listed and _stream(log.calls[n]) is not None), None)
            if block is not None and unseen_attention(log, block):
                blocks[block] = None
    return list(blocks)


def _block_of(seen: LoggedAttention, log: CallLog) -> int | None:
    # Two attention calls within one call of their module (differential attention) count once.
    apart = {(other.inside, other.crossing) for other in log.attention}
    held: Counter[tuple[int, bool]] = Counter((number, crossing) for inside, crossing in apart for number in inside)
    small = [n for n in seen.inside if held[n, False] <= 1 and held[n, True] <= 1]
    streaming = [n for n in small if _stream(log.calls[n]) is not None]
    listed = (n for n in streaming if log.calls[n].listed)
    # Without a list, take the outermost module with a stream, but not the whole model or the attention itself.
    inner = (n for n in streaming if log.calls[n].path not in ("", seen.owner))
    return next(listed, next(inner, None))


def _stream(call: ModuleCall) -> tuple[Slot, Slot, tuple[int, int, int]] | None:
    """Return the slots where a stream enters and leaves (the first input and output of one 3-axis shape), and this
    shape."""
    for enters, shape in call.takes:
        if len(shape) == 3:
            leaves = next((slot for slot, given in call.gives if given == shape), None)
            return None if leaves is None else (enters, leaves, (shape[0], shape[1], shape[2]))
    return None


def _described(call: ModuleCall, stack: str, layer: int, alike: LoggedAttention | None, kind: str) -> FoundBlock:
    """Return a block. `alike` is its attention, or the attention of another block of its stack, or None."""
    stream = _stream(call)
    assert stream is not None
    enters, leaves, shape = stream
    return FoundBlock(
        stack=stack,
        layer=layer,
        path=call.path,
        nth=call.nth,
        enters=enters,
        leaves=leaves,
        shape=shape,
        sequence_first=alike is not None and shape[:2] == (alike.queries, alike.batch) and alike.queries != alike.batch,
        overwrites=call.overwrites,
        batch=shape[0] if alike is None else alike.batch,
        kind=kind,
    )


def _home(log: CallLog, number: int, chosen: Iterable[int]) -> tuple[str, ...]:
    """Return the path that identifies the stack of a block: the path of the list that contains the block.

    If one list element contains several blocks (two streams that attend to each other, as in LXMERT), each has its own
    stack, named after its module. A block that is called twice in an element gets a stack for each call.
    """
    call = log.calls[number]
    element = next((n for n in log.around(number) if log.calls[n].listed), None)
    if element is None or element == number:
        return _words(_list_of(call.path))
    same = sorted(n for n in chosen if log.calls[n].path == call.path and element in log.around(n))
    which = same.index(number) if number in same else 0
    parts = _words(call.path)
    return (*parts[:-1], parts[-1] if not which else f"{parts[-1]} ({which + 1})")


def _element(log: CallLog, seen: LoggedAttention) -> int | None:
    """Return the innermost numbered list element that contains an attention call."""
    listed = (n for n in reversed(seen.inside) if log.calls[n].listed)
    return next((n for n in listed if log.calls[n].path.rpartition(".")[2].isdigit()), None)


def _home_without_block(log: CallLog, seen: LoggedAttention) -> tuple[str, ...]:
    """Return the path that identifies the stack of an attention call outside blocks.

    This is the path of the list that contains the call, or of its module if one list element makes several calls.
    """
    element = _element(log, seen)
    if element is None or sum(element in other.inside for other in log.attention) == 1:
        return _words(_list_of(seen.owner if element is None else log.calls[element].path))
    return _words(seen.owner)


def _words(path: str) -> tuple[str, ...]:
    """Return the parts of a path that are not numbers, so that the stages of a model form one stack."""
    return tuple(part for part in path.split(".") if part and not part.isdigit())


def stack_names(containers: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """Name each stack after the first part of its path that no other shares: `encoder`, `decoder`, `vision`."""
    paths = list(containers)
    if len(paths) == 1:
        return {paths[0]: "model"}
    names: dict[tuple[str, ...], str] = {}
    for path in paths:
        shared = max(_common(path, other) for other in paths if other != path)
        names[path] = path[shared] if shared < len(path) else ".".join(path) or "model"
    if len(set(names.values())) < len(paths):
        return {path: ".".join(path) or "model" for path in paths}
    short = {path: _shortened(name) for path, name in names.items()}
    return short if len(set(short.values())) == len(paths) else names


def _common(left: tuple[str, ...], right: tuple[str, ...]) -> int:
    """Return the length of the common prefix of two paths."""
    return next((n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def _shortened(name: str) -> str:
    tail = next((tail for tail in _TAILS if name.endswith(tail) and len(name) > len(tail)), "")
    return name.removesuffix(tail)
