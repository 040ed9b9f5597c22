"""Freeze a model at one input, for path decompositions: `freeze(model, batch) -> Network`.

The model runs once, and every block gets a graded stream: a tensor that knows which paths it is made of. The arguments
of every block are kept, so that each block can run again alone. The part after the last block (final norm, head)
is run by the model itself, while its blocks return stored outputs. The model is restored afterwards.

In float64 the casts to float32 that many norms make are suppressed, because paths must be exact. In float32 the numbers
equal the model's own up to rounding: the key-value cache and fused layers are off, so sums may be taken in another
order.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.core.errors import RefusalError, nearest
from attnscope.hf.anatomy.anatomy import Anatomy, Block, Stack, anatomy
from attnscope.hf.anatomy.example import Batch, run
from attnscope.hf.intercepting.owners import (
    arguments,
    at,
    every_tensor,
    first_output,
    same_numbers,
    with_argument,
    with_output,
)
from attnscope.hf.intercepting.restoring import Restoring, evaluating, without_cache
from attnscope.hf.intercepting.wrappers import without_fast_path
from attnscope.hf.loading.classes import experts_in, one_after_another
from attnscope.pathways.graded import Graded, plain
from attnscope.pathways.network import BlockCache, Network, caching, differences, followed

ALLOWED = {torch.float64: 1e-10, torch.float32: 1e-4}


@dataclass(frozen=True)
class _Call:
    """One call of a block: its arguments and its output."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    answer: Any


def freeze(model: nn.Module, batch: Batch, found: Anatomy | None = None, stack: str | None = None) -> Network:
    """Return the network of `model` at `batch`; refuse if its linear form does not reproduce the model's output."""
    if found is None:
        found = anatomy(model, None if getattr(model, "config", None) is not None else batch)
    chosen = _stack(found, stack)
    _refuse_without_attention(found, chosen)
    batch = _without_cache(model, batch)
    dtype = _precision(model, batch)
    if dtype not in ALLOWED:
        raise RefusalError(f"Paths need float64 or float32, and the model is in {dtype}: load it as `dtype='float64'`.")
    caches: dict[int, BlockCache] = defaultdict(BlockCache)
    with torch.no_grad(), _plainly(model, found), without_cache(model):
        calls, output = _recorded(model, chosen, batch, caches)
    network = _network(model, found, chosen, batch, calls, output, caches)
    _refuse_not_finite(model, network)
    _refuse_unchained(network, calls, chosen)
    with torch.no_grad():
        found_differences = differences(network)
    for index, difference in enumerate(found_differences):
        if not difference <= ALLOWED[dtype]:
            where = f"block {index}" if index < network.layers else "what follows the blocks"
            experts = experts_in(model)
            perhaps = "" if experts is None else f" (perhaps its mixture of experts ({experts}))"
            raise RefusalError(
                f"The linear form of {network.name} differs from the model by {max(found_differences):.1e} (relative; "
                f"first in {where}), above {ALLOWED[dtype]:.0e}: something in it{perhaps} is random (dropout left on), "
                "quantised or not linear when frozen; choose another model."
            )
    return replace(network, apart=max(found_differences))


@contextmanager
def _plainly(module: nn.Module, found: Anatomy) -> Iterator[None]:
    """Set evaluation mode, and run without fused layers and grouped experts."""
    with evaluating(module), without_fast_path(found.fast_path), one_after_another(module):
        yield


def _refuse_without_attention(found: Anatomy, stack: Stack) -> None:
    for block in stack.blocks:
        if not block.attends and block.kind != "MLP":
            raise RefusalError(
                f"Block {block.layer} of {found.model_class} has no softmax attention ({block.kind}), so paths "
                "through it are not a sum over heads: choose a model or a stack in which every block attends."
            )


def _precision(model: nn.Module, batch: Batch) -> torch.dtype:
    """Return the dtype of the weights, or of the inputs if the model has no weights."""
    given = (tensor for tensor in every_tensor(batch) if tensor.is_floating_point())
    return next((tensor.dtype for tensor in chain(model.parameters(), given)), torch.float32)


def _refuse_not_finite(model: nn.Module, network: Network) -> None:
    if network.output.isfinite().all() and all(stream.isfinite().all() for stream in network.streams):
        return
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            raise RefusalError(f"The weights {name} of {network.name} hold NaN or infinity: load other weights.")
    first = next((i for i, stream in enumerate(network.streams) if not stream.isfinite().all()), network.layers)
    where = "before its first block" if first == 0 else f"in block {first - 1}"
    wider = "check the input" if network.output.dtype == torch.float64 else "try `dtype='float64'`"
    raise RefusalError(f"{network.name} computes NaN or infinity {where} on this input: {wider}.")


def _refuse_unchained(network: Network, calls: tuple[_Call, ...], stack: Stack) -> None:
    """Refuse a model that changes the stream between blocks, because paths would miss the change."""
    for layer, (call, block) in enumerate(zip(calls, stack.blocks, strict=True)):
        if not same_numbers(stack.turned(at(call.answer, block.leaves)), network.streams[layer + 1]):
            raise RefusalError(
                f"{network.name} changes the stream between blocks {layer} and {layer + 1}, so paths cannot be "
                "followed: choose another model."
            )


def _network(
    model: nn.Module,
    found: Anatomy,
    stack: Stack,
    batch: Batch,
    calls: tuple[_Call, ...],
    output: Tensor,
    caches: dict[int, BlockCache],
) -> Network:
    streams = [
        stack.turned(plain(arguments(call.args, call.kwargs)[block.enters]))
        for call, block in zip(calls, stack.blocks, strict=True)
    ]
    streams.append(stack.turned(plain(at(calls[-1].answer, stack.blocks[-1].leaves))))

    rows = len(streams[0])

    def runner(call: _Call, block: Block) -> Callable[[Tensor], Tensor]:
        def piece(stream: Tensor) -> Tensor:
            stream = stream.clone() if block.overwrites else stream
            args, kwargs = call.args, call.kwargs
            if len(stream) != rows:  # changed copies of one sequence
                args, kwargs = _for_rows((args, kwargs), len(stream))
            args, kwargs = with_argument(args, kwargs, block.enters, stack.turned(stream))
            with _plainly(call.module, found):
                answer: Tensor = at(call.module(*args, **kwargs), block.leaves)
            return stack.turned(answer)

        return piece

    def tail(stream: Tensor) -> Tensor:
        answers = [plain(call.answer) for call in calls]
        answers[-1] = with_output(answers[-1], stack.blocks[-1].leaves, stack.turned(stream))
        with _plainly(model, found), without_cache(model), _answering(model, stack, answers):
            return first_output(run(model, batch))

    blocks = tuple(runner(call, block) for call, block in zip(calls, stack.blocks, strict=True))
    return Network(type(model).__name__, tuple(streams), blocks, tail, output, caches=caches)


def _for_rows(given: Any, rows: int) -> Any:
    """Return stored arguments for several changed copies of the sequence: masks and positions get a row for each."""
    if isinstance(given, Tensor):
        return given.expand(rows, *given.shape[1:]) if given.ndim > 1 and len(given) == 1 else given
    if isinstance(given, (tuple, list)) and not hasattr(given, "_fields"):
        return type(given)(_for_rows(item, rows) for item in given)
    return {name: _for_rows(item, rows) for name, item in given.items()} if type(given) is dict else given


def _recorded(
    model: nn.Module, stack: Stack, batch: Batch, caches: dict[int, BlockCache]
) -> tuple[tuple[_Call, ...], Tensor]:
    """Run the model once on a graded stream. Return the calls of the stack's blocks, and the model's output.

    Expensive values of every block are kept in `caches`, so that the block does not compute them again.
    """
    calls: dict[int, _Call] = {}
    inputs: dict[int, tuple[Any, Any]] = {}
    keeping = ExitStack()

    def enter(block: Block, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        stream = plain(arguments(args, kwargs)[block.enters]).detach()
        args, kwargs = with_argument(args, kwargs, block.enters, Graded.entering(stream))
        kept = stream.clone() if block.overwrites else stream
        inputs[block.layer] = with_argument(plain(args), plain(kwargs), block.enters, kept)
        keeping.enter_context(caching(caches[block.layer], stream))
        return args, kwargs

    def leave(block: Block, answer: Any) -> None:
        keeping.close()
        followed(at(answer, block.leaves), f"block {block.layer} of {type(model).__name__}")
        calls[block.layer] = _Call(model.get_submodule(block.path), *inputs[block.layer], plain(answer))

    with keeping, Restoring() as changes:
        changes.nth_calls(model, stack.calls, before=enter, after=leave)
        output = first_output(run(model, batch))
    missing = [block.layer for block in stack.blocks if block.layer not in calls]
    if missing:
        raise RefusalError(
            f"Block {missing[0]} of {type(model).__name__} did not run on this input: paths need every block."
        )
    return tuple(calls[block.layer] for block in stack.blocks), plain(output)


@contextmanager
def _answering(model: nn.Module, stack: Stack, answers: list[Any]) -> Iterator[None]:
    """Make the blocks of the stack return stored outputs inside this context."""
    waiting: dict[str, list[Any]] = {}
    for block, answer in sorted(zip(stack.blocks, answers, strict=True), key=lambda pair: pair[0].nth):
        waiting.setdefault(block.path, []).append(answer)

    def stand_in(path: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: waiting[path].pop(0)

    with Restoring() as changes:
        for path in waiting:
            changes.forward(model.get_submodule(path), stand_in(path))
        yield


def _stack(found: Anatomy, name: str | None) -> Stack:
    if not found.stacks:
        raise RefusalError(f"{found.model_class} has no blocks with a residual stream: choose another model.")
    if name is None:
        return found.stacks[-1]
    stack = found.stack(name)
    if stack is None:
        raise RefusalError(f"There is no stack called '{name}'.{nearest(name, [s.name for s in found.stacks])}")
    return stack


def _without_cache(model: nn.Module, batch: Batch) -> Batch:
    """Add use_cache=False to the batch if the model accepts it: a cache keeps tensors of one run for the next."""
    takes = "use_cache" in inspect.signature(model.forward).parameters
    return {**batch, "use_cache": False} if takes and isinstance(batch, Mapping) else batch
