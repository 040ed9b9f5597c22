"""What the training loop gave to the model: the arguments of its last forward, their precision, and what came of it.

A hook before the model's forward keeps the arguments of training forwards (with gradients, in training mode), by name.
They are references, not copies, and are let go when the step is over. Of several forwards in one step (accumulated
gradients) the last is kept, and the losses of all of them.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.hf.anatomy.example import same_chance
from attnscope.hf.intercepting.restoring import Restoring, evaluating, looking_at, without_gradients

# Inside, a model may be run without a trace in the training around it.
#
# Modes of modules, the random state of torch, NumPy and Python, and buffers that a forward may write are as they were
# when the context is left; no gradient is recorded, and torch.autocast is off until somebody asks for it.


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    kind = next((p.device.type for p in model.parameters()), "cpu")
    buffers: dict[Tensor, Tensor] = {one: one.detach().clone() for one in model.buffers()}
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with (
            looking_at(model),
            same_chance(model),
            evaluating(model),
            without_gradients(),
            torch.autocast(kind, enabled=False),
        ):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        with torch.no_grad():
            for one, was in buffers.items():
                if not torch.equal(one, was):
                    one.copy_(was)


Inputs = dict[str, Any]
# What a look has no use for: it asks for no loss, no cache and no maps.
_LEFT_OUT = (
    *("labels", "num_items_in_batch", "past_key_values", "use_cache", "logits_to_keep"),
    *("return_dict", "output_attentions", "output_hidden_states"),
)


@dataclass(frozen=True)
class Precision:
    """torch.autocast as it was around the forward; None: it was off."""

    kind: str
    dtype: torch.dtype | None

    @classmethod
    def now(cls, kind: str) -> Precision:
        return cls(kind, torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None)

    def __call__(self) -> torch.autocast:
        """The same again; casts of weights are not kept, since the next step changes the weights."""
        return torch.autocast(self.kind, self.dtype, enabled=self.dtype is not None, cache_enabled=False)


@dataclass
class Caught:
    """Filled by the hooks, emptied by `forget` when a step is over."""

    inputs: Inputs | None = None
    labels: Inputs = field(default_factory=dict)  # that were left out of them
    keeps: tuple[str, ...] = ()  # what this model does not run without
    precision: Precision | None = None
    losses: list[Tensor] = field(default_factory=list)
    summed: bool = False  # the losses are parts of a sum, not each a mean
    forwards: int = 0  # since the beginning
    tokens: int = 0

    def forget(self) -> None:
        self.inputs, self.precision, self.losses, self.labels = None, None, [], {}

    def loss(self) -> float | None:
        """The loss of the step where the model itself computes it."""
        if not self.losses:
            return None
        total = sum(float(one) for one in self.losses)
        return total if self.summed else total / len(self.losses)


def catch(
    changes: Restoring,
    outer: nn.Module,
    model: nn.Module,
    caught: Caught,
    before: Callable[[Inputs], None],
    after: Callable[[Any], None],
) -> None:
    """Hooks on `outer`, the module that the loop calls; arguments are those of `model`, which may stand inside it.
    `before` is told of every training forward before it runs, `after` what it gave."""
    signature = inspect.signature(model.forward)
    device = next((p.device.type for p in model.parameters()), "cpu")

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling() or not (module.training and torch.is_grad_enabled()):
            return
        try:
            bound = signature.bind_partial(*args, **kwargs)
        except TypeError:
            return  # the model's own words about wrong arguments are better
        caught.forwards += 1
        caught.summed = "num_items_in_batch" in kwargs and kwargs["num_items_in_batch"] is not None
        caught.precision = Precision.now(device)
        caught.inputs = named(signature, bound, caught.keeps)
        caught.labels = labels_of(signature, bound, caught.inputs)
        caught.tokens += tokens_of(caught.inputs)
        before(caught.inputs)

    def leave(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if torch.compiler.is_compiling() or not (module.training and torch.is_grad_enabled()):
            return
        loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if isinstance(loss, Tensor) and loss.numel() == 1:
            caught.losses.append(loss.detach())
        after(output)

    changes.before(outer, enter)
    changes.after(outer, leave)


def named(signature: inspect.Signature, bound: inspect.BoundArguments, keeps: tuple[str, ...] = ()) -> Inputs:
    """Arguments by name, without those that a look has no use for; `keeps` names some that it has to have."""
    given = _given(signature, bound)
    written = "decoder_input_ids" in signature.parameters and given.get("decoder_input_ids") is None
    kept = {*keeps, "labels"} if written else {*keeps}  # from which an encoder-decoder makes what its decoder reads
    needed = {n for n, p in signature.parameters.items() if p.default is p.empty}
    return {n: v for n, v in given.items() if v is not None and (n not in _LEFT_OUT or n in kept or n in needed)}


def labels_of(signature: inspect.Signature, bound: inspect.BoundArguments, kept: Inputs) -> Inputs:
    """Labels that were given and are not kept: some models do not run without them."""
    labels = _given(signature, bound).get("labels")
    return {} if labels is None or "labels" in kept else {"labels": labels}


def _given(signature: inspect.Signature, bound: inspect.BoundArguments) -> Inputs:
    given: Inputs = {}
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            given |= value
        elif kind is not inspect.Parameter.VAR_POSITIONAL:
            given[name] = value
        elif value:
            raise RefusalError(
                f"The model is called with arguments that have no name (*{name}), so a look cannot repeat the call: "
                "give probe=, a batch of named arguments."
            )
    return given


def tokens_of(inputs: Mapping[str, Any]) -> int:
    """Tokens of a batch: positions of its first table of integers, padding included; else its sequences."""
    tensors = [one for one in inputs.values() if isinstance(one, Tensor) and one.ndim]
    tables = [one for one in tensors if one.ndim == 2 and not one.is_floating_point()]
    return tables[0].numel() if tables else len(tensors[0]) if tensors else 0


def sliced(inputs: Mapping[str, Any], rows: int | None, sequence_first: bool) -> Inputs:
    """The first `rows` sequences of a batch; None: all of them."""
    axis = 1 if sequence_first else 0
    main = next((one for one in inputs.values() if isinstance(one, Tensor) and one.ndim > axis), None)
    if main is None or rows is None:
        return dict(inputs)
    size = main.shape[axis]

    def cut(value: Any) -> Any:
        fits = isinstance(value, Tensor) and value.ndim > axis and value.shape[axis] == size
        return value.narrow(axis, 0, min(rows, size)) if fits else value

    return {name: cut(value) for name, value in inputs.items()}


def checked_probe(model: nn.Module, probe: Mapping[str, Any] | None) -> tuple[Inputs | None, Inputs]:
    """A batch to look at, as the model takes it, and the labels that are left out; copied, since it has to stay what
    it is."""
    if probe is None:
        return None, {}
    if not isinstance(probe, Mapping) or not any(isinstance(one, Tensor) for one in probe.values()):
        raise RefusalError(
            "A probe maps the names of forward's arguments to tensors, sequences first: give {'input_ids': ...}."
        )
    signature = inspect.signature(model.forward)
    try:
        bound = signature.bind_partial(**probe)
    except TypeError as error:
        raise RefusalError(f"The probe does not fit {type(model).__name__}: {error}.") from error
    place = next((p.device for p in model.parameters()), torch.device("cpu"))
    kept = named(signature, bound)

    def copied(one: Inputs) -> Inputs:
        return {n: v.detach().clone().to(place) if isinstance(v, Tensor) else v for n, v in one.items()}

    return copied(kept), copied(labels_of(signature, bound, kept))
