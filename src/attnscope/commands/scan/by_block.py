"""All sequences through one block, then through the next: a model is scanned with the weights of one block in memory.

    for batches in rounds(subject, batches): observe_by_block(subject, observer, batches)

What enters block k is kept of every sequence (the streams). For block k the model's own forward runs once a batch, up
to that block and no further: blocks before it answer at once, with the stream that the last of them gave, so block k is
called by the model itself, with its masks and positions. Of the tap's frames those of block k are handed on. The stream
that leaves it takes the place of the one that entered.

    read from disk      every block once a round
    in memory           the largest block, what is outside the blocks, and streams: tokens x width x bytes

It is exact where blocks hand on their stream and nothing else. That is not believed but tried: a few sequences go
through the model both ways, and what leaves every block must be equal bit for bit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.commands.scan.observer import Observer
from attnscope.commands.scan.plan import Subject
from attnscope.core.errors import RefusalError
from attnscope.data.batches import Batch
from attnscope.data.frame import StreamFrame
from attnscope.hf.anatomy.anatomy import Anatomy, Block, Stack
from attnscope.hf.intercepting.restoring import Restoring, evaluating
from attnscope.hf.intercepting.slots import arguments, at, every_tensor, same_numbers
from attnscope.hf.intercepting.wrappers import held
from attnscope.hf.loading.placing import memory_left
from attnscope.hf.tapping.tap import Frame, tap

_SHARE_OF_MEMORY = 0.5  # what streams may fill of what is free
_TRIED_TOKENS = 64

AfterBlock = Callable[[int, int], None]
"""Told of how many blocks are done, and of how many."""


class _ReachedError(Exception):
    """Block k has run: the rest of the model is not wanted."""


@dataclass
class _Relay:
    """What goes from one block to the next."""

    given: dict[int, Any] = field(default_factory=dict)  # by block: what it returns, without the stream
    stream: Tensor | None = None  # of the batch under way


def rounds(subject: Subject, batches: Iterable[Batch], free: int | None = None) -> Iterator[tuple[Batch, ...]]:
    """As many batches at a time as have room for their streams; `free` are bytes."""
    room = _SHARE_OF_MEMORY * (memory_left() if free is None else free)
    width, precision = subject.anatomy.stacks[0].width, next(subject.model.parameters()).dtype
    together: list[Batch] = []
    filled = 0.0
    for batch in batches:
        tokens = max((t.numel() for t in batch.inputs.values() if t.ndim == 2), default=batch.tokens)
        size = tokens * width * precision.itemsize
        if together and filled + size > room:
            yield tuple(together)
            together, filled = [], 0.0
        together.append(batch)
        filled += size
    if together:
        yield tuple(together)


def refuse_without_chain(subject: Subject, batch: Batch) -> None:
    """Models whose blocks cannot run one after the other, each by itself."""
    found = subject.anatomy
    why = _why_not(found)
    if why is None:
        few = batch.rows(range(min(2, len(batch)))) if not batch.undivided else batch
        why = _tried(subject, few.shortened(_TRIED_TOKENS))
    if why is not None:
        raise RefusalError(
            f"{found.model_class} cannot be scanned block by block ({why}): leave `stream_weights=` out, and pass "
            "`device_map='auto'` if the model does not fit into memory."
        )


def observe_by_block(
    subject: Subject, observer: Observer, batches: Sequence[Batch], after_block: AfterBlock | None = None
) -> None:
    """What `Subject.observe` sees of every batch, for all of them together. It waits for `commit`."""
    streams: list[Tensor | None] = [None] * len(batches)
    counted: list[frozenset[str]] = [frozenset()] * len(batches)
    (stack,) = subject.anatomy.stacks
    relay = _Relay()
    try:
        for number, block in enumerate(stack.blocks):
            # What enters a block left the one before it, and was handed on there, together with the stream before it.
            receive = _without_entrance(observer.receive, block.layer) if number else observer.receive
            with held(subject.model.get_submodule(block.path)):
                for place, batch in enumerate(batches):
                    relay.stream = streams[place]
                    streams[place] = _through(subject, stack, number, batch, relay, receive)
                    counted[place] |= observer.finish(batch.samples, counted[place])
            observer.commit()
            if after_block is not None:
                after_block(number + 1, len(stack.blocks))
    except BaseException:
        observer.discard()
        raise


def _through(
    subject: Subject, stack: Stack, number: int, batch: Batch, relay: _Relay, receive: Callable[[Frame], None] | None
) -> Tensor:
    """Run the model up to block `number` on one batch; what leaves the block."""
    model, block = subject.model, stack.blocks[number]
    part = replace(
        subject.anatomy,
        sites=tuple(site for site in subject.anatomy.sites if site.layer == block.layer),
        stacks=(replace(stack, blocks=(block,)),),
    )
    left: list[Tensor] = []

    def enters(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        stream = arguments(args, kwargs)[block.enters]
        if relay.stream is not None and not same_numbers(stream, relay.stream):
            raise RefusalError(
                f"What enters block {block.layer} of {part.model_class} is not what left the one before it on this "
                "batch: leave `stream_weights=` out."
            )

    def leaves(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        relay.given[number] = _without_stream(output, block)
        left.append(at(output, block.leaves).detach())
        raise _ReachedError

    ready = batch.to(subject.place)
    with Restoring() as changes:
        for earlier in range(number):
            changes.forward(model.get_submodule(stack.blocks[earlier].path), _stand_in(relay, earlier, stack))
        if receive is not None:
            changes.enter_context(tap(model, part, receive))
        changes.before(model.get_submodule(block.path), enters)
        changes.after(model.get_submodule(block.path), leaves)
        with suppress(_ReachedError):
            model(**ready.inputs, **subject.options)
    # A copy of its own where it is a view of something larger, which would be kept with it.
    own = left[0]
    return own if own.untyped_storage().nbytes() == own.numel() * own.itemsize else own.clone()


def _stand_in(relay: _Relay, number: int, stack: Stack) -> Callable[..., Any]:
    """What a block that has run before answers: what it returned, with the stream of the last one."""
    slot = stack.blocks[number].leaves

    def answer(*args: Any, **kwargs: Any) -> Any:
        given = relay.given[number]
        if given is None:
            return relay.stream
        return type(given)(relay.stream if place == slot else one for place, one in enumerate(given))

    return answer


def _without_stream(output: Any, block: Block) -> Any:
    if isinstance(output, Tensor):
        return None
    if type(output) not in (tuple, list):
        raise RefusalError(f"block {block.layer} returns a {type(output).__name__}")
    # Other tensors (maps, as a rule, that nobody reads) are not kept: where a later block needs them, trying shows it.
    return type(output)(None if any(True for _ in every_tensor(one)) else one for one in output)


def _without_entrance(receive: Callable[[Frame], None], layer: int) -> Callable[[Frame], None]:
    def chosen(frame: Frame) -> None:
        if not (isinstance(frame, StreamFrame) and frame.site == "stream" and frame.layer == layer):
            receive(frame)

    return chosen


def _why_not(found: Anatomy) -> str | None:
    if len(found.stacks) != 1:
        return f"it has {len(found.stacks)} stacks of blocks, which read each other"
    (stack,) = found.stacks
    paths = [block.path for block in stack.blocks]
    if len(set(paths)) < len(paths):
        return f"{paths[0]} is run {paths.count(paths[0])} times, so its weights are in memory anyway"
    if not stack.chained:
        return "something happens to the stream between its blocks"
    if any(site.stack != stack.name or site.layer not in {b.layer for b in stack.blocks} for site in found.sites):
        return "it attends outside its blocks"
    if stack.mask is None and not all(block.attends for block in stack.blocks):
        return "its inputs do not say what is padding, and some blocks have no attention that would show it"
    return None


def _tried(subject: Subject, batch: Batch) -> str | None:
    """Run a few sequences both ways, and compare what leaves every block."""
    model, (stack,) = subject.model, subject.anatomy.stacks
    whole: list[str] = []
    with evaluating(model), torch.no_grad(), Restoring() as changes:
        for block in stack.blocks:
            changes.after(model.get_submodule(block.path), _digesting(block, whole))
        model(**batch.to(subject.place).inputs, **subject.options)
    relay = _Relay()
    with evaluating(model), torch.no_grad():
        for number, block in enumerate(stack.blocks):
            try:
                relay.stream = _through(subject, stack, number, batch, relay, None)
            except RefusalError as refusal:
                return refusal.sentence
            except Exception as error:  # whatever a block says that misses what earlier ones left behind
                return f"block {block.layer} does not run by itself: {type(error).__name__}"
            if _digest(relay.stream) != whole[number]:
                return f"block {block.layer} reads more than the stream and the inputs"
    return None


def _digesting(block: Block, into: list[str]) -> Callable[..., None]:
    def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        into.append(_digest(at(output, block.leaves)))

    return hook


def _digest(stream: Tensor) -> str:
    flat: Any = stream.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return hashlib.sha256(flat).hexdigest()
