"""A model at one input, cut between its blocks, for path decompositions: `freeze(model, batch) -> Network`.

The model runs once with a graded stream put in where its first block begins. The arguments of every block are kept, so
that each can be run again alone. What follows the last block (final norm, head) is run by the model itself, with its
blocks answering from memory. Hooks and stand-ins live inside contexts: everything is restored.

In float64 the casts to float32 that many norms make are left out, because paths must be exact. In float32 the numbers
are the model's own up to rounding: the same functions run, but without a key-value cache and without fused layers, so
that a processor may add in another order. Only the tap promises equality to the bit.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
from attnscope.pathways.network import Network, differences, followed

ALLOWED = {torch.float64: 1e-10, torch.float32: 1e-4}


@dataclass(frozen=True)
class _Call:
    """One call of a block: its arguments and its output."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    answer: Any


def freeze(model: nn.Module, batch: Batch, found: Anatomy | None = None, stack: str | None = None) -> Network:
    """Return the network of `model` at `batch`; refuse if its linear form does not give the model's own numbers."""
    if found is None:
        found = anatomy(model, None if getattr(model, "config", None) is not None else batch)
    chosen = _stack(found, stack)
    _refuse_without_attention(found, chosen)
    batch = _without_cache(model, batch)
    dtype = _precision(model, batch)
    if dtype not in ALLOWED:
        raise RefusalError(f"Paths need float64 or float32, and the model is in {dtype}: load it as `dtype='float64'`.")
    with torch.no_grad(), _plainly(model, found), without_cache(model):
        calls, output = _recorded(model, chosen, batch)
    network = _network(model, found, chosen, batch, calls, output)
    _refuse_not_finite(model, network)
    _refuse_unchained(network, calls, chosen)
    with torch.no_grad():
        found_differences = differences(network)
    for index, difference in enumerate(found_differences):
        if not difference <= ALLOWED[dtype]:
            where = f"block {index}" if index < network.layers else "what follows the blocks"
            experts = experts_in(model)
            perhaps = "" if experts is None else f" (perhaps its mixture of experts ({experts}))"
            cause = (
                f"something in it{perhaps} is random (dropout left on), quantised or not linear when frozen; choose "
                "another model"
            )
            raise RefusalError(
                f"The linear form of {network.name} differs from the model by {max(found_differences):.1e} (relative; "
                f"first in {where}), above {ALLOWED[dtype]:.0e}: {cause}."
            )
    return replace(network, apart=max(found_differences))


@contextmanager
def _plainly(module: nn.Module, found: Anatomy) -> Iterator[None]:
    """Set evaluation mode and make every step a separate function: no fused layers, no grouped experts."""
    with evaluating(module), without_fast_path(found.fast_path), one_after_another(module):
        yield


def _refuse_without_attention(found: Anatomy, stack: Stack) -> None:
    for block in stack.blocks:
        if not block.attends and block.kind != "MLP":
            raise RefusalError(
                f"Block {block.layer} of {found.model_class} has no softmax attention ({block.kind}), and paths "
                "through it are not a sum over heads: choose a model, or a stack, whose every block attends."
            )


def _precision(model: nn.Module, batch: Batch) -> torch.dtype:
    """Return the dtype of the weights; a model without weights computes in the dtype of its inputs."""
    given = (tensor for tensor in every_tensor(batch) if tensor.is_floating_point())
    return next((tensor.dtype for tensor in chain(model.parameters(), given)), torch.float32)


def _refuse_not_finite(model: nn.Module, network: Network) -> None:
    if network.output.isfinite().all() and all(stream.isfinite().all() for stream in network.streams):
        return
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            raise RefusalError(f"{network.name} has weights that are not numbers, in {name}: mend or reload them.")
    first = next((i for i, stream in enumerate(network.streams) if not stream.isfinite().all()), network.layers)
    where = "before its first block" if first == 0 else f"in block {first - 1}"
    wider = "look at the input" if network.output.dtype == torch.float64 else "try `dtype='float64'`"
    raise RefusalError(f"{network.name} computes what is not a number {where} on this input: {wider}.")


def _refuse_unchained(network: Network, calls: tuple[_Call, ...], stack: Stack) -> None:
    """Refuse changes of the stream between blocks: paths go from block to block and would lose them."""
    for layer, (call, block) in enumerate(zip(calls, stack.blocks, strict=True)):
        if not same_numbers(stack.turned(at(call.answer, block.leaves)), network.streams[layer + 1]):
            raise RefusalError(
                f"{network.name} changes the stream between blocks {layer} and {layer + 1}, outside of both: "
                "paths cannot be followed through it; choose another model."
            )


def _network(
    model: nn.Module, found: Anatomy, stack: Stack, batch: Batch, calls: tuple[_Call, ...], output: Tensor
) -> Network:
    streams = [
        stack.turned(plain(arguments(call.args, call.kwargs)[block.enters]))
        for call, block in zip(calls, stack.blocks, strict=True)
    ]
    streams.append(stack.turned(plain(at(calls[-1].answer, stack.blocks[-1].leaves))))

    def runner(call: _Call, block: Block) -> Callable[[Tensor], Tensor]:
        def piece(stream: Tensor) -> Tensor:
            stream = stream.clone() if block.overwrites else stream
            args, kwargs = with_argument(call.args, call.kwargs, block.enters, stack.turned(stream))
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
    return Network(type(model).__name__, tuple(streams), blocks, tail, output)


def _recorded(model: nn.Module, stack: Stack, batch: Batch) -> tuple[tuple[_Call, ...], Tensor]:
    """Run the model once on a graded stream: return the calls of the stack's blocks, and the model's output."""
    calls: dict[int, _Call] = {}
    given: dict[int, tuple[Any, Any]] = {}

    def enter(block: Block, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        stream = plain(arguments(args, kwargs)[block.enters]).detach()
        args, kwargs = with_argument(args, kwargs, block.enters, Graded.entering(stream))
        kept = stream.clone() if block.overwrites else stream
        given[block.layer] = with_argument(plain(args), plain(kwargs), block.enters, kept)
        return args, kwargs

    def leave(block: Block, answer: Any) -> None:
        followed(at(answer, block.leaves), f"block {block.layer} of {type(model).__name__}")
        calls[block.layer] = _Call(model.get_submodule(block.path), *given[block.layer], plain(answer))

    with Restoring() as changes:
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
    """Make the blocks of the stack return stored outputs inside this context, instead of computing."""
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
        raise RefusalError(f"{found.model_class} has no blocks that pass a stream on: paths need them.")
    if name is None:
        return found.stacks[-1]
    stack = found.stack(name)
    if stack is None:
        raise RefusalError(f"There is no stack called '{name}'.{nearest(name, [s.name for s in found.stacks])}")
    return stack


def _without_cache(model: nn.Module, batch: Batch) -> Batch:
    """Switch the key-value cache off: it keeps tensors of one run for the next."""
    takes = "use_cache" in inspect.signature(model.forward).parameters
    return {**batch, "use_cache": False} if takes and isinstance(batch, Mapping) else batch
