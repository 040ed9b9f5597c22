"""Watching torch-level attention while the module that makes it (its owner) runs, for any number of listeners.

An owner's forward is wrapped once. Listeners come and go in any order, all hear of the same calls from one watch (of
two watches the inner one would keep fused calls to itself), and the last to go puts the forward back. A listener hears
of calls in its own thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock, get_ident
from typing import Any

from torch import nn

from attnscope.hf.seeing.primitives import Seen, SoftmaxWatch, looking_away
from attnscope.hf.seeing.restoring import Restoring


@dataclass(frozen=True, eq=False)
class Listener:
    """Who wants to hear of an owner's attention: whether now, of each call, and of calls not understood."""

    active: Callable[[], bool]
    seen: Callable[[Seen], None]
    lost: Callable[[], None]
    thread: int = field(default_factory=get_ident)


class _Owner:
    def __init__(self, module: nn.Module) -> None:
        self.forward = module.forward
        self.listeners: list[Listener] = []
        self.changes = Restoring()
        self.changes.forward(module, self.watching, everywhere=True)

    def watching(self, *args: Any, **kwargs: Any) -> Any:
        me = get_ident()
        listeners = [one for one in tuple(self.listeners) if one.thread == me and one.active()]
        if not listeners:
            return self.forward(*args, **kwargs)

        def tell(call: Seen) -> None:
            for listener in listeners:
                listener.seen(call)

        watch = SoftmaxWatch(tell)
        with looking_away(), watch:  # an owner around this one does not take these calls for its own
            result = self.forward(*args, **kwargs)
        if watch.lost:
            for listener in listeners:
                listener.lost()
        return result


_OWNERS: dict[nn.Module, _Owner] = {}
_CHANGING = Lock()


@contextmanager
def watched_owner(module: nn.Module, listener: Listener) -> Iterator[None]:
    """While active, `listener` hears of the attention that `module` makes."""
    with _CHANGING:
        if module not in _OWNERS:
            _OWNERS[module] = _Owner(module)
        owner = _OWNERS[module]
        owner.listeners.append(listener)
    try:
        yield
    finally:
        with _CHANGING:
            owner.listeners.remove(listener)
            if not owner.listeners:
                _OWNERS.pop(module).changes.close()
