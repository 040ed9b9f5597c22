"""Watch torch-level attention while the module that makes it (its owner) runs, for any number of listeners.

An owner's forward is wrapped once. Listeners come and go in any order, and all hear of the same calls from one watch:
of two nested watches the inner one would keep fused calls to itself. The last listener to leave restores the forward.
A listener hears of calls in its own thread only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock, get_ident
from typing import Any, TypeVar

from torch import nn

from attnscope.hf.intercepting.restoring import Restoring
from attnscope.hf.intercepting.torch_calls import Seen, SoftmaxWatch, unwatched


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
