"""Capture the arguments, the precision and the loss of training forwards.

Hooks keep the named arguments of forwards that run in training mode with gradients. They are references, not copies,
and are dropped when the step is over. With accumulated gradients the arguments of the last forward of a step are kept,
and the losses of all of them.
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

Inputs = dict[str, Any]
# A look needs no loss, no cache and no attention maps.
_LEFT_OUT = (
    *("labels", "num_items_in_batch", "past_key_values", "use_cache", "logits_to_keep"),
    *("return_dict", "output_attentions", "output_hidden_states"),
)


def device_of(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))


@contextmanager
def without_side_effects(model: nn.Module) -> Iterator[None]:
    """Run a model during training without side effects.

    On exit, module modes, buffers and the random states of torch, NumPy and Python are restored. Inside, no gradient is
    recorded and torch.autocast is off.
    """
    buffers: dict[Tensor, Tensor] = {buffer: buffer.detach().clone() for buffer in model.buffers()}
    python_state, numpy_state = random.getstate(), np.random.get_state()
    no_autocast = torch.autocast(device_of(model).type, enabled=False)
    try:
        with looking_at(model), same_chance(model), evaluating(model), without_gradients(), no_autocast:
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        with torch.no_grad():
            for buffer, earlier in buffers.items():
                if not torch.equal(buffer, earlier):
                    buffer.copy_(earlier)


@dataclass(frozen=True)
class AutocastState:
    """The state of torch.autocast around a forward; `dtype` is None if it was off."""

    device_type: str
    dtype: torch.dtype | None

    @classmethod
    def current(cls, model: nn.Module) -> AutocastState:
        kind = device_of(model).type
        return cls(kind, torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None)

    def __call__(self) -> torch.autocast:
        """Return the same autocast again, without a cache of cast weights: the next step changes the weights."""
        return torch.autocast(self.device_type, self.dtype, enabled=self.dtype is not None, cache_enabled=False)


@dataclass
class ForwardCapture:
    """The values captured in a step: filled by the hooks of `install`, emptied by `forget` when the step is over."""

    inputs: Inputs | None = None
    labels: Inputs = field(default_factory=dict)  # labels of the forward, which `inputs` leaves out
    required: tuple[str, ...] = ()  # arguments without which this model does not run
    autocast: AutocastState | None = None
    losses: list[Tensor] = field(default_factory=list)
    summed: bool = False  # the loop passes `num_items_in_batch`, so losses are parts of a sum
    forwards: int = 0  # training forwards since the start of the run
    tokens: int = 0  # tokens since the start of the run

    def forget(self) -> None:
        self.inputs, self.autocast, self.losses, self.labels = None, None, [], {}

    def loss(self) -> float | None:
        """Return the loss of the step if the model computes it itself."""
        if not self.losses:
            return None
        total = sum(float(loss) for loss in self.losses)
        return total if self.summed else total / len(self.losses)

    def install(
        self,
        changes: Restoring,
        called: nn.Module,
        model: nn.Module,
        before: Callable[[Inputs], None],
        after: Callable[[Any], None],
    ) -> None:
        """Hook `called`, the module that the loop calls, which may wrap `model`.

        `before(inputs)` runs before every training forward, `after(output)` after it.
        """
        signature = inspect.signature(model.forward)

        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not _trains(module):
                return
            try:
                bound = signature.bind_partial(*args, **kwargs)
            except TypeError:
                return  # the model raises a better message about wrong arguments
            self.forwards += 1
            self.summed = "num_items_in_batch" in kwargs and kwargs["num_items_in_batch"] is not None
            self.autocast = AutocastState.current(model)
            self.inputs, self.labels = look_inputs(signature, bound, self.required)
            self.tokens += _tokens(self.inputs)
            before(self.inputs)

        def leave(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if not _trains(module):
                return
            loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
            if isinstance(loss, Tensor) and loss.numel() == 1:
                self.losses.append(loss.detach())
            after(output)

        changes.before(called, enter)
        changes.after(called, leave)


def _trains(module: nn.Module) -> bool:
    return not torch.compiler.is_compiling() and module.training and torch.is_grad_enabled()


def look_inputs(
    signature: inspect.Signature, bound: inspect.BoundArguments, required: tuple[str, ...] = ()
) -> tuple[Inputs, Inputs]:
    """Return the arguments of a call that a look needs, by name, and the labels if they are not among them."""
    arguments: Inputs = {}
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            arguments |= value
        elif kind is not inspect.Parameter.VAR_POSITIONAL:
            arguments[name] = value
        elif value:
            raise RefusalError(
                f"The model is called with arguments that have no name (*{name}), so a look cannot repeat the call: "
                "give probe=, a batch of named arguments."
            )
    kept = {*required, *(n for n, p in signature.parameters.items() if p.default is p.empty)}
    if "decoder_input_ids" in signature.parameters and arguments.get("decoder_input_ids") is None:
        kept.add("labels")  # an encoder-decoder derives its decoder inputs from them
    inputs = {n: v for n, v in arguments.items() if v is not None and (n not in _LEFT_OUT or n in kept)}
    labels = arguments.get("labels")
    return inputs, {} if labels is None or "labels" in inputs else {"labels": labels}


def _tokens(inputs: Mapping[str, Any]) -> int:
    """Return the size of the first two-dimensional integer tensor (tokens, padding included), else the number of
    sequences."""
    tensors = [value for value in inputs.values() if isinstance(value, Tensor) and value.ndim]
    tables = [tensor for tensor in tensors if tensor.ndim == 2 and not tensor.is_floating_point()]
    return tables[0].numel() if tables else len(tensors[0]) if tensors else 0


def first_rows(inputs: Mapping[str, Any], rows: int | None, sequence_first: bool) -> Inputs:
    """Return the first `rows` sequences of a batch; None returns all of them."""
    axis = 1 if sequence_first else 0
    main = next((value for value in inputs.values() if isinstance(value, Tensor) and value.ndim > axis), None)
    if main is None or rows is None:
        return dict(inputs)
    size = main.shape[axis]

    def cut(value: Any) -> Any:
        fits = isinstance(value, Tensor) and value.ndim > axis and value.shape[axis] == size
        return value.narrow(axis, 0, min(rows, size)) if fits else value

    return {name: cut(value) for name, value in inputs.items()}


def checked_probe(model: nn.Module, probe: Mapping[str, Any] | None) -> tuple[Inputs | None, Inputs]:
    """Return a copy of the probe batch as the model takes it, and the labels that are left out."""
    if probe is None:
        return None, {}
    if not isinstance(probe, Mapping) or not any(isinstance(value, Tensor) for value in probe.values()):
        raise RefusalError(
            "A probe maps argument names of `forward` to tensors, with sequences on axis 0: give {'input_ids': ...}."
        )
    signature = inspect.signature(model.forward)
    try:
        bound = signature.bind_partial(**probe)
    except TypeError as error:
        raise RefusalError(f"The probe does not fit {type(model).__name__}: {error}.") from error
    device = device_of(model)
    inputs, labels = (
        {n: v.detach().clone().to(device) if isinstance(v, Tensor) else v for n, v in part.items()}
        for part in look_inputs(signature, bound)
    )
    return inputs, labels
