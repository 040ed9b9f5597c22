"""Observe the attention of a module (its owner) for any number of listeners.

The forward of an owner is wrapped once, and all listeners get the calls from one watch: of two nested watches the inner
one would hide fused calls from the outer one. Listeners may come and go in any order. The last one to leave restores
the forward. A listener gets only the calls of its own thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from threading import Lock, get_ident
from typing import Any, TypeVar

from torch import Tensor, nn

from attnscope.hf.intercepting.restoring import Restoring
from attnscope.hf.intercepting.torch_calls import Seen, SoftmaxWatch, unwatched

Slot = int | str  # position or name of an argument, or index or key in an output


def float_tensors(values: Any) -> Iterator[tuple[Slot, Tensor]]:
    """Yield (slot, tensor) for each floating-point tensor at the top level of an output or a mapping of arguments."""
    pairs: Any = ()
    if isinstance(values, Tensor):
        pairs = enumerate((values,))
    elif isinstance(values, Mapping):
        pairs = values.items()
    elif isinstance(values, (tuple, list)):
        pairs = enumerate(values)
    return ((slot, value) for slot, value in pairs if isinstance(value, Tensor) and value.is_floating_point())


def arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[Slot, Any]:
    """Return positional and named arguments as one mapping, positional ones by number."""
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
    """Return the first floating-point output of a model: logits, or the last state."""
    return next(tensor for tensor in every_tensor(output) if tensor.is_floating_point())


def repeated(batch: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """Return a batch of one sequence, expanded to `rows` rows."""
    return {
        name: value.expand(rows, *value.shape[1:]) if isinstance(value, Tensor) and value.ndim else value
        for name, value in batch.items()
    }


def same_numbers(left: Tensor, right: Tensor) -> bool:
    """Return whether shapes and all entries are equal; NaN equals NaN."""
    return left.shape == right.shape and bool(((left == right) | (left.isnan() & right.isnan())).all())


class SharedForward(ABC):
    """The forward of a module, wrapped once for all current users."""

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
    """Wrap the module's forward with `wrap` unless it is in `active`; restore it when the last user leaves."""
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
    """`seen` gets each attention call of an owner while `active()`; `lost` runs after unsupported calls."""

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
        with unwatched(), watch:  # an enclosing owner must not get these calls
            result = self.forward(*args, **kwargs)
        if watch.lost:
            for listener in listeners:
                listener.lost()
        return result


_OWNERS: dict[nn.Module, _Owner] = {}


def watched_owner(module: nn.Module, listener: CallListener) -> AbstractContextManager[None]:
    """Pass the attention calls of `module` to `listener` inside this context."""
    return shared_forward(_OWNERS, module, _Owner, listener)
