"""Run all sequences through one block, then through the next, with the weights of one block in memory.

    for batches in rounds(subject, batches): observe_by_block(subject, observer, batches)

The streams that enter block k are kept for every sequence. For block k the model's own forward runs once per batch, up
to that block: earlier blocks return at once, with the stream of the last of them, so the model itself calls block k,
with its masks and positions. The observer receives the frames of block k, and the stream that leaves the block is kept.

    read from disk      every block once a round
    in memory           the largest block, weights outside the blocks, and streams: tokens x width x bytes

This is exact if a block reads nothing from earlier blocks but the stream. That is tested first: a few sequences run
both ways, and the stream after every block must be equal bit for bit.
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
from attnscope.hf.intercepting.owners import arguments, at, every_tensor, same_numbers
from attnscope.hf.intercepting.restoring import Restoring, evaluating
from attnscope.hf.intercepting.wrappers import held
from attnscope.hf.loading.memory import memory_left
from attnscope.hf.tapping.tap import Frame, tap

_SHARE_OF_MEMORY = 0.5  # share of the free memory that streams may use
_TRIED_TOKENS = 64

AfterBlock = Callable[[int, int], None]
"""A function that is called with the number of finished blocks and the number of all blocks."""


class _ReachedError(Exception):
    """Raised to stop the forward pass after block k."""


@dataclass
class _Relay:
    """The values that are kept from one block to the next."""

    outputs: dict[int, Any] = field(default_factory=dict)  # output of each block, without the stream
    stream: Tensor | None = None  # streams of the current batch


def rounds(subject: Subject, batches: Iterable[Batch], free: int | None = None) -> Iterator[tuple[Batch, ...]]:
    """Yield groups of batches whose streams fit into `free` bytes of memory."""
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
    """Refuse a model whose blocks cannot run one after the other."""
    why = _why_not(subject.anatomy)
    if why is None:
        few = batch.rows(range(min(2, len(batch)))) if not batch.undivided else batch
        why = _why_unequal(subject, few.shortened(_TRIED_TOKENS))
    if why is not None:
        raise RefusalError(
            f"{subject.anatomy.model_class} cannot be scanned block by block ({why}): leave `stream_weights=` out, and "
            "pass `device_map='auto'` if the model does not fit into memory."
        )


def observe_by_block(
    subject: Subject, observer: Observer, batches: Sequence[Batch], after_block: AfterBlock | None = None
) -> None:
    """Observe all batches, with the same result as `Subject.observe` on each."""
    streams: list[Tensor | None] = [None] * len(batches)
    counted: list[frozenset[str]] = [frozenset()] * len(batches)
    (stack,) = subject.anatomy.stacks
    relay = _Relay()
    try:
        for number, block in enumerate(stack.blocks):
            # The stream that enters this block was observed when it left the block before.
            receive = _without_entrance(observer.receive, block.layer) if number else observer.receive
            with held(subject.model.get_submodule(block.path)):
                for index, batch in enumerate(batches):
                    relay.stream = streams[index]
                    streams[index] = _through(subject, number, batch, relay, receive)
                    counted[index] |= observer.finish(batch.samples, counted[index])
            observer.commit()
            if after_block is not None:
                after_block(number + 1, len(stack.blocks))
    except BaseException:
        observer.discard()
        raise


def _through(
    subject: Subject, number: int, batch: Batch, relay: _Relay, receive: Callable[[Frame], None] | None
) -> Tensor:
    """Run the model up to block `number` on one batch, and return the stream that leaves the block."""
    (stack,) = subject.anatomy.stacks
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
                f"The stream that enters block {block.layer} of {part.model_class} differs from the one that left the "
                "block before it: leave `stream_weights=` out."
            )

    def leaves(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        relay.outputs[number] = _without_stream(output, block)
        left.append(at(output, block.leaves).detach())
        raise _ReachedError

    ready = batch.to(subject.device)
    with Restoring() as changes:
        for earlier in range(number):
            changes.forward(model.get_submodule(stack.blocks[earlier].path), _stand_in(relay, earlier, stack))
        if receive is not None:
            changes.enter_context(tap(model, part, receive))
        changes.before(model.get_submodule(block.path), enters)
        changes.after(model.get_submodule(block.path), leaves)
        with suppress(_ReachedError):
            model(**ready.inputs, **subject.options)
    # Copy views: a view would keep its larger base tensor in memory.
    stream = left[0]
    return stream if stream.untyped_storage().nbytes() == stream.numel() * stream.itemsize else stream.clone()


def _stand_in(relay: _Relay, number: int, stack: Stack) -> Callable[..., Any]:
    """Return a forward that repeats the output of an earlier block, with the current stream."""
    slot = stack.blocks[number].leaves

    def forward(*args: Any, **kwargs: Any) -> Any:
        output = relay.outputs[number]
        if output is None:
            return relay.stream
        return type(output)(relay.stream if index == slot else entry for index, entry in enumerate(output))

    return forward


def _without_stream(output: Any, block: Block) -> Any:
    if isinstance(output, Tensor):
        return None
    if type(output) not in (tuple, list):
        raise RefusalError(f"block {block.layer} returns a {type(output).__name__}")
    # Other tensors (attention maps, usually) are dropped. If a later block needs them, the test run fails.
    return type(output)(None if any(True for _ in every_tensor(entry)) else entry for entry in output)


def _without_entrance(receive: Callable[[Frame], None], layer: int) -> Callable[[Frame], None]:
    def chosen(frame: Frame) -> None:
        if not (isinstance(frame, StreamFrame) and frame.site == "stream" and frame.layer == layer):
            receive(frame)

    return chosen


def _why_not(found: Anatomy) -> str | None:
    if len(found.stacks) != 1:
        return f"its {len(found.stacks)} stacks of blocks read each other"
    (stack,) = found.stacks
    paths = [block.path for block in stack.blocks]
    if len(set(paths)) < len(paths):
        return f"{paths[0]} runs {paths.count(paths[0])} times in one pass, so nothing is saved"
    if not stack.chained:
        return "it changes the stream between its blocks"
    if any(site.stack != stack.name or site.layer not in {b.layer for b in stack.blocks} for site in found.sites):
        return "it has attention outside its blocks"
    if stack.mask is None and not all(block.attends for block in stack.blocks):
        return "its inputs have no padding mask, and some blocks have no attention from which to derive one"
    return None


def _why_unequal(subject: Subject, batch: Batch) -> str | None:
    """Run a few sequences both ways and compare the streams; return the first difference or None."""
    model, (stack,) = subject.model, subject.anatomy.stacks
    whole: list[str] = []
    with evaluating(model), torch.no_grad(), Restoring() as changes:
        for block in stack.blocks:
            changes.after(model.get_submodule(block.path), _digesting(block, whole))
        model(**batch.to(subject.device).inputs, **subject.options)
    relay = _Relay()
    with evaluating(model), torch.no_grad():
        for number, block in enumerate(stack.blocks):
            try:
                relay.stream = _through(subject, number, batch, relay, None)
            except RefusalError as refusal:
                return refusal.sentence
            except Exception as error:  # a block may raise anything if an output of earlier blocks is missing
                return f"block {block.layer} does not run on its own: {type(error).__name__}"
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
