"""A model at one input, cut between its blocks, for path decompositions: `freeze(model, batch) -> Network`.

The model runs once with a graded stream put in where its first block begins. What every block is called with is kept,
so that each can be run again alone; what follows the last block (final norm, head) is run by the model itself, with its
blocks answering from memory. Nothing stays changed: hooks and stand-ins live inside contexts.

In float64 the casts to float32 that many norms make are left out, because paths are to be exact. In float32 the numbers
are the model's own to rounding: the same functions run, but without a cache of keys and without fused layers: tensors
lie otherwise in memory and a processor may add in another order. Bit-equality is what the tap promises, not this.
"""

from __future__ import annotations

import inspect
from collections import Counter
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
from attnscope.hf.intercepting.restoring import Restoring, evaluating, without_cache
from attnscope.hf.intercepting.slots import Slot, at, every_tensor, same_numbers
from attnscope.hf.intercepting.wrappers import without_fast_path
from attnscope.hf.loading.devices import experts_in, one_after_another
from attnscope.pathways.graded import Graded, plain
from attnscope.pathways.network import Network, differences, followed

ALLOWED = {torch.float64: 1e-10, torch.float32: 1e-4}


@dataclass(frozen=True)
class _Call:
    """One call of a block: everything it was given, where the stream stood in it, and what it gave."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    answer: Any


def freeze(model: nn.Module, batch: Batch, found: Anatomy | None = None, stack: str | None = None) -> Network:
    """The network that `model` is at `batch`; refused when its linear form does not give the model's own numbers."""
    found = anatomy(model, None if found is None and _has_config(model) else batch) if found is None else found
    chosen = _stack(found, stack)
    _refuse_without_attention(found, chosen)
    batch = _without_cache(model, batch)
    dtype = _precision(model, batch)
    if dtype not in ALLOWED:
        raise RefusalError(f"Paths need float64 or float32, and the model is in {dtype}: load it with --dtype float64.")
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
    """In evaluation, every step a function of its own: no fused layers, no grouped experts."""
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
    """Of the weights; a model without any computes in the precision of what it is given."""
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
    wider = "look at the input" if network.output.dtype == torch.float64 else "try --dtype float64"
    raise RefusalError(f"{network.name} computes what is not a number {where} on this input: {wider}.")


def _refuse_unchained(network: Network, calls: tuple[_Call, ...], stack: Stack) -> None:
    """Paths go from block to block: whatever the model does to the stream in between would be lost."""
    for layer, (call, block) in enumerate(zip(calls, stack.blocks, strict=True)):
        left = at(call.answer, block.leaves)
        if not same_numbers(left.transpose(0, 1) if stack.sequence_first else left, network.streams[layer + 1]):
            raise RefusalError(
                f"{network.name} changes the stream between blocks {layer} and {layer + 1}, outside of both: "
                "paths cannot be followed through it; choose another model."
            )


def _network(
    model: nn.Module, found: Anatomy, stack: Stack, batch: Batch, calls: tuple[_Call, ...], output: Tensor
) -> Network:
    def turned(stream: Tensor) -> Tensor:
        """Sequences first, where the model has tokens first."""
        return stream.transpose(0, 1) if stack.sequence_first else stream

    streams = [
        turned(plain(_argument(call.args, call.kwargs, block.enters)))
        for call, block in zip(calls, stack.blocks, strict=True)
    ]
    streams.append(turned(plain(at(calls[-1].answer, stack.blocks[-1].leaves))))

    def runner(call: _Call, block: Block) -> Callable[[Tensor], Tensor]:
        def piece(stream: Tensor) -> Tensor:
            stream = stream.clone() if block.overwrites else stream
            args, kwargs = _replaced(call.args, call.kwargs, block.enters, turned(stream))
            with _plainly(call.module, found):
                answer: Tensor = at(call.module(*args, **kwargs), block.leaves)
            return turned(answer)

        return piece

    def tail(stream: Tensor) -> Tensor:
        answers = [plain(call.answer) for call in calls]
        answers[-1] = _put(answers[-1], stack.blocks[-1].leaves, turned(stream))
        with _plainly(model, found), without_cache(model), _answering(model, stack, answers):
            return _first(run(model, batch))

    blocks = tuple(runner(call, block) for call, block in zip(calls, stack.blocks, strict=True))
    return Network(type(model).__name__, tuple(streams), blocks, tail, output)


def _recorded(model: nn.Module, stack: Stack, batch: Batch) -> tuple[tuple[_Call, ...], Tensor]:
    """Run the model once on a graded stream: the calls of the stack's blocks, and the model's output."""
    calls: dict[int, _Call] = {}
    places = {(block.path, block.nth): block for block in stack.blocks}
    entered: Counter[str] = Counter()
    left: Counter[str] = Counter()
    given: dict[tuple[str, int], tuple[Any, Any]] = {}

    def before(path: str) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            block = places.get((path, entered[path]))
            entered[path] += 1
            if block is None:
                return None
            stream = _argument(args, kwargs, block.enters)
            args, kwargs = _replaced(args, kwargs, block.enters, Graded.entering(plain(stream).detach()))
            kept = plain(stream).detach()
            kept = kept.clone() if block.overwrites else kept
            given[path, block.nth] = _replaced(plain(args), plain(kwargs), block.enters, kept)
            return args, kwargs

        return hook

    def after(path: str) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Any, ...], answer: Any) -> None:
            block = places.get((path, left[path]))
            left[path] += 1
            if block is not None:
                followed(at(answer, block.leaves), f"block {block.layer} of {type(model).__name__}")
                calls[block.layer] = _Call(module, *given[path, block.nth], plain(answer))

        return hook

    with Restoring() as changes:
        for path in dict.fromkeys(block.path for block in stack.blocks):
            module = model.get_submodule(path)
            changes.before(module, before(path))
            changes.after(module, after(path))
        output = _first(run(model, batch))
    missing = [block.layer for block in stack.blocks if block.layer not in calls]
    if missing:
        raise RefusalError(
            f"Block {missing[0]} of {type(model).__name__} did not run on this input: paths need every block."
        )
    return tuple(calls[block.layer] for block in stack.blocks), plain(output)


@contextmanager
def _answering(model: nn.Module, stack: Stack, answers: list[Any]) -> Iterator[None]:
    """Inside, the blocks of the stack answer from memory instead of computing."""
    asked: Counter[str] = Counter()
    known = {(block.path, block.nth): answer for block, answer in zip(stack.blocks, answers, strict=True)}

    def stand_in(path: str) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            asked[path] += 1
            return known[path, asked[path] - 1]

        return forward

    with Restoring() as changes:
        for path in dict.fromkeys(block.path for block in stack.blocks):
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


def _has_config(model: nn.Module) -> bool:
    return getattr(model, "config", None) is not None


def _without_cache(model: nn.Module, batch: Batch) -> Batch:
    """Caches of keys and values keep tensors of one run for the next: none is wanted here."""
    takes = "use_cache" in inspect.signature(model.forward).parameters
    return {**batch, "use_cache": False} if takes and isinstance(batch, Mapping) else batch


def _argument(args: tuple[Any, ...], kwargs: Mapping[str, Any], slot: Slot) -> Any:
    return args[slot] if isinstance(slot, int) else kwargs[slot]


def _replaced(args: Any, kwargs: Any, slot: Slot, stream: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(slot, int):
        return (*args[:slot], stream, *args[slot + 1 :]), dict(kwargs)
    return tuple(args), {**kwargs, slot: stream}


def _put(answer: Any, slot: Slot, stream: Tensor) -> Any:
    if isinstance(answer, Tensor):
        return stream
    if isinstance(answer, (tuple, list)) and isinstance(slot, int):
        return type(answer)((*answer[:slot], stream, *answer[slot + 1 :]))
    changed = type(answer)(**answer)
    changed[slot] = stream
    return changed


def _first(answer: Any) -> Tensor:
    """The model's first floating output: logits, or the last state."""
    return next(tensor for tensor in every_tensor(answer) if tensor.is_floating_point())
