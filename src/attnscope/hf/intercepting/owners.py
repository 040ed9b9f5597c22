"""Watch torch-level attention while the module that makes it (its owner) runs, for any number of listeners.

An owner's forward is wrapped once. Listeners come and go in any order, and all hear of the same calls from one watch:
of two nested watches the inner one would keep fused calls to itself. The last listener to leave restores the forward.
A listener hears of calls in its own thread only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock, get_ident
from typing import Any, TypeVar

from torch import Tensor, nn

from attnscope.hf.intercepting.restoring import Restoring
from attnscope.hf.intercepting.torch_calls import Seen, SoftmaxWatch, unwatched

# Find and replace tensors in what modules take and return: by position, by name, in tuples or in output classes.

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


class SharedForward(ABC):
    """A module's forward, wrapped once for all who use the wrapper at the same time."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.forward = module, module.forward
        self.users: list[Any] = []
        self.changes = Restoring()
        self.changes.forward(module, self.call, everywhere=True)

    @abstractmethod
    def call(self, *args: Any, **kwargs: Any) -> Any: ...


_CHANGING = Lock()
Wrapped = TypeVar("Wrapped", bound=SharedForward)


@contextmanager
def shared_forward(
    active: dict[nn.Module, Wrapped], module: nn.Module, wrap: Callable[[nn.Module], Wrapped], user: object
) -> Iterator[None]:
    """Wrap the module's forward by `wrap`, unless `active` has it wrapped; restore it when the last user leaves."""
    with _CHANGING:
        if module not in active:
            active[module] = wrap(module)
        active[module].users.append(user)
    try:
        yield
    finally:
        with _CHANGING:
            active[module].users.remove(user)
            if not active[module].users:
                active.pop(module).changes.close()


@dataclass(frozen=True, eq=False)
class CallListener:
    """`seen` gets each attention call of an owner while `active()`; `lost` runs after calls not understood."""

    active: Callable[[], bool]
    seen: Callable[[Seen], None]
    lost: Callable[[], None]
    thread: int = field(default_factory=get_ident)


class _Owner(SharedForward):
    users: list[CallListener]

    def call(self, *args: Any, **kwargs: Any) -> Any:
        thread = get_ident()
        listeners = [user for user in tuple(self.users) if user.thread == thread and user.active()]
        if not listeners:
            return self.forward(*args, **kwargs)

        def pass_on(call: Seen) -> None:
            for listener in listeners:
                listener.seen(call)

        watch = SoftmaxWatch(pass_on)
        with unwatched(), watch:  # an owner around this one does not take these calls for its own
            result = self.forward(*args, **kwargs)
        if watch.lost:
            for listener in listeners:
                listener.lost()
        return result


_OWNERS: dict[nn.Module, _Owner] = {}


@contextmanager
def watched_owner(module: nn.Module, listener: CallListener) -> Iterator[None]:
    """While active, `listener` hears of the attention that `module` makes."""
    with shared_forward(_OWNERS, module, _Owner, listener):
        yield
