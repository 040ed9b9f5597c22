"""From a census to stacks of blocks: which module calls are layers, what they are called, how deep each one
is.

A block is the outermost element of a module list whose call holds at most one self- and at most one
cross-attention: that is a layer in nearly every model, shared (one module called at every depth) or not,
with sublayers of its own or not. Elements of the same list that pass the same stream on without attending
(recurrent, convolutions) are blocks too, so that block 5 of a stack is block 5 of the model. Blocks of one
list form a stack; stacks are named by the first part of their paths that tells them apart.
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
    batch: int  # of its attention: sequences, or windows of them
    kind: str  # "attention", or what stands in its place


@dataclass(frozen=True)
class PlacedCall:
    """An attention call with its place in a stack; `block` is None where no stream surrounds it."""

    seen: LoggedAttention
    stack: str
    layer: int
    block: FoundBlock | None


@dataclass(frozen=True)
class Placement:
    """Every attention call, and every block, whether it attends or not."""

    sites: tuple[PlacedCall, ...]
    blocks: tuple[FoundBlock, ...]


def place(census: CallLog, told: tuple[str, ...] = ()) -> Placement:
    """Every attention call with its stack, its layer, and the block around it; and the blocks beside those.

    `told` is what the configuration calls each layer, where it says so.
    """
    chosen = [_block_of(seen, census) for seen in census.attention]
    attending = {n: seen for n, seen in zip(chosen, census.attention, strict=True) if n is not None}
    beside = _beside(census, attending)
    unseen = _unseen(census, {*attending, *beside})
    homes = {n: _home(census, n, attending) for n in (*attending, *beside, *unseen)}
    containers = [
        homes[number] if number is not None else _home_without_block(census, seen)
        for number, seen in zip(chosen, census.attention, strict=True)
    ]
    streaming = dict.fromkeys(homes[n] for n in sorted({*attending, *unseen}))
    names = stack_names(dict.fromkeys((*containers, *streaming))) | (stack_names(streaming) if streaming else {})
    if len(set(names.values())) < len(names):
        names = {container: ".".join(container) or "model" for container in names}
    blocks: dict[int, FoundBlock] = {}
    layers: dict[tuple[str, int], int] = {}
    elements = [
        None if n is not None else _element(census, seen) for n, seen in zip(chosen, census.attention, strict=True)
    ]
    for stack in dict.fromkeys(names.values()):
        bare = {e for e, c in zip(elements, containers, strict=True) if e is not None and names[c] == stack}
        numbers = sorted(bare | {n for n in homes if names[homes[n]] == stack})
        for number, layer in zip(numbers, _own_numbers([census.calls[n] for n in numbers]), strict=True):
            layers[stack, number] = layer
            if number in homes:
                like = attending.get(beside.get(number, number))
                word = told[layer] if len(told) == len(numbers) and layer < len(told) else None
                kind = ATTENTION if number in attending else kind_of(census, number, word)
                blocks[number] = _describe(census.calls[number], number, stack, layer, like, kind)
    placed = []
    alone: Counter[str] = Counter()
    for own, element, container, seen in zip(chosen, elements, containers, census.attention, strict=True):
        stack = names[container]
        home = element if own is None else own
        layer = alone[stack] if home is None else layers[stack, home]
        alone[stack] += home is None
        placed.append(PlacedCall(seen, stack, layer, None if own is None else blocks[own]))
    return Placement(tuple(placed), tuple(blocks[number] for number in sorted(blocks)))


def _own_numbers(calls: list[ModuleCall]) -> list[int]:
    """The model's own numbers: places in its list of blocks; the order of calls where blocks are shared or staged."""
    once = len({call.path for call in calls}) == len(calls)
    one_list = len({call.path.rpartition(".")[0] for call in calls}) == 1
    last = [call.path.rpartition(".")[2] for call in calls]
    if once and one_list and all(part.isdigit() for part in last):
        return [int(part) for part in last]
    return list(range(len(calls)))


def _beside(census: CallLog, attending: dict[int, LoggedAttention]) -> dict[int, int]:
    """Calls of a list's other elements that pass the same stream on without attention: by number, one that attends."""
    lists: dict[tuple[str, int | None], int] = {}
    for number in attending:
        call = census.calls[number]
        if call.listed:
            lists.setdefault((call.path.rpartition(".")[0], call.around), number)
    holding = {call.around for call in census.calls}  # norms, activations and the like hold nothing
    found = {}
    for number, call in enumerate(census.calls):
        alike = lists.get((call.path.rpartition(".")[0], call.around)) if call.listed and number in holding else None
        if alike is None or number in attending:
            continue
        stream, other = _stream(call), _stream(census.calls[alike])
        if stream is not None and other is not None and stream[2] == other[2]:
            found[number] = alike
    return found


def _unseen(census: CallLog, known: set[int]) -> list[int]:
    """Elements of lists that pass a stream on and attend in a way that is not seen: their streams can be."""
    loose = [scope for scope in census.loose if known.isdisjoint(scope)]
    found: dict[int, None] = {}
    for scope in loose:
        listed = (n for n in scope if census.calls[n].listed and _stream(census.calls[n]) is not None)
        block = next(listed, None)
        if block is not None and unseen_attention(census, block):
            found[block] = None
    return list(found)


def _block_of(seen: LoggedAttention, census: CallLog) -> int | None:
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


def _describe(
    call: ModuleCall, number: int, stack: str, layer: int, alike: LoggedAttention | None, kind: str
) -> FoundBlock:
    """`alike` is the attention of this block, or of another one of its stack, where there is any."""
    stream = _stream(call)
    assert stream is not None
    enters, leaves, shape = stream
    flipped = alike is not None and shape[:2] == (alike.queries, alike.batch) and alike.queries != alike.batch
    return FoundBlock(
        stack=stack,
        layer=layer,
        path=call.path,
        nth=call.nth,
        number=number,
        enters=enters,
        leaves=leaves,
        shape=shape,
        sequence_first=flipped,
        overwrites=call.overwrites,
        batch=shape[0] if alike is None else alike.batch,
        kind=kind,
    )


def _home(census: CallLog, number: int, chosen: Iterable[int]) -> tuple[str, ...]:
    """What tells a block's stack from others: the list it stands in.

    Where an element of a list holds several blocks (two streams that look at each other, as in LXMERT), each of them
    has a stack of its own, by the name of its module; one that is called twice in an element, by which call it is.
    """
    call = census.calls[number]
    element = next((n for n in census.around(number) if census.calls[n].listed), None)
    if element is None or element == number:
        return _container(call.path)
    same = sorted(n for n in chosen if census.calls[n].path == call.path and element in census.around(n))
    which = same.index(number) if number in same else 0
    parts = tuple(part for part in call.path.split(".") if not part.isdigit())
    return (*parts[:-1], parts[-1] if not which else f"{parts[-1]} ({which + 1})")


def _element(census: CallLog, seen: LoggedAttention) -> int | None:
    """The numbered element of a list that an attention call happened in, the innermost; none where it was in none."""
    listed = (n for n in reversed(seen.inside) if census.calls[n].listed)
    return next((n for n in listed if census.calls[n].path.rpartition(".")[2].isdigit()), None)


def _home_without_block(census: CallLog, seen: LoggedAttention) -> tuple[str, ...]:
    """The stack of an attention call with no stream of tokens around it: its list, or where an element of that list
    attends several times, each of its modules by name."""
    element = _element(census, seen)
    if element is None or sum(element in other.inside for other in census.attention) == 1:
        return _container(seen.owner if element is None else census.calls[element].path)
    return tuple(part for part in seen.owner.split(".") if not part.isdigit())


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
