"""Find and replace tensors in what modules take and return: by position, by name, in tuples or in output classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

Slot = int | str


def float_tensors(values: Any) -> Iterator[tuple[Slot, Tensor]]:
    """Yield (slot, tensor) for each floating tensor at the top level of an output or of a mapping of arguments."""
    pairs: Any = ()
    if isinstance(values, Tensor):
        pairs = enumerate((values,))
    elif isinstance(values, Mapping):
        pairs = values.items()
    elif isinstance(values, (tuple, list)):
        pairs = enumerate(values)
    return ((slot, value) for slot, value in pairs if isinstance(value, Tensor) and value.is_floating_point())


def arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[Slot, Any]:
    """Return positional (by number) and named arguments as one mapping."""
    every: dict[Slot, Any] = dict(enumerate(args))
    return every | dict(kwargs)


def at(output: Any, slot: Slot) -> Any:
    return output if isinstance(output, Tensor) else output[slot]


def with_argument(args: Any, kwargs: Any, slot: Slot, tensor: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call with another tensor at `slot`."""
    if isinstance(slot, int):
        return (*args[:slot], tensor, *args[slot + 1 :]), dict(kwargs)
    return tuple(args), {**kwargs, slot: tensor}


def with_output(output: Any, slot: Slot, tensor: Tensor) -> Any:
    """Return the same output with another tensor at `slot`."""
    if isinstance(output, Tensor):
        return tensor
    if isinstance(output, (tuple, list)):
        return type(output)(tensor if index == slot else value for index, value in enumerate(output))
    changed = type(output)(**output)
    changed[slot] = tensor
    return changed


def every_tensor(values: Any) -> Iterator[Tensor]:
    """Yield all tensors of a nested output, in order."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, (Mapping, tuple, list)):
        for value in values.values() if isinstance(values, Mapping) else values:
            yield from every_tensor(value)


def first_output(output: Any) -> Tensor:
    """Return the model's first floating output: logits, or the last state."""
    return next(tensor for tensor in every_tensor(output) if tensor.is_floating_point())


def repeated(batch: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """Return a batch of one sequence expanded to that many rows."""
    return {
        name: value.expand(rows, *value.shape[1:]) if isinstance(value, Tensor) and value.ndim else value
        for name, value in batch.items()
    }


def same_numbers(left: Tensor, right: Tensor) -> bool:
    """Return whether shape and all entries are equal, where NaN equals NaN."""
    return left.shape == right.shape and bool(((left == right) | (left.isnan() & right.isnan())).all())
