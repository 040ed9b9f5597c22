"""Watching torch-level attention while the module that makes it (its owner) runs, for any number of listeners.

An owner's forward is wrapped once. Listeners come and go in any order, all hear of the same calls from one watch (of
two watches the inner one would keep fused calls to itself), and the last to go puts the forward back. A listener hears
of calls in its own thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock, get_ident
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.hf.intercepting.restoring import Restoring
from attnscope.hf.intercepting.torch_calls import Seen, SoftmaxWatch, unwatched

# Finding tensors in what modules take and give: positional, by name, or inside tuples and output classes.

Slot = int | str


def float_tensors(thing: Any) -> Iterator[tuple[Slot, Tensor]]:
    """The floating tensors at the top of an output or of a mapping of arguments, with where they were."""
    if isinstance(thing, Tensor):
        thing = (thing,)
    pairs: Any = ()
    if isinstance(thing, Mapping):
        pairs = thing.items()
    elif isinstance(thing, (tuple, list)):
        pairs = enumerate(thing)
    for slot, value in pairs:
        if isinstance(value, Tensor) and value.is_floating_point():
            yield slot, value


def arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[Slot, Any]:
    """One mapping for positional (by number) and named arguments."""
    every: dict[Slot, Any] = dict(enumerate(args))
    every.update(kwargs)
    return every


def at(thing: Any, slot: Slot) -> Any:
    """What stands at that slot of an output."""
    return thing if isinstance(thing, Tensor) else thing[slot]


def every_tensor(thing: Any) -> Iterator[Tensor]:
    """All tensors of a nested output, in order."""
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, Mapping):
        for value in thing.values():
            yield from every_tensor(value)
    elif isinstance(thing, (tuple, list)):
        for value in thing:
            yield from every_tensor(value)


def same_numbers(one: Tensor, other: Tensor) -> bool:
    """Equal in shape and in every entry, where NaN equals NaN."""
    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())


def by_head(output: Float[Tensor, "batch token width"], heads: int) -> Float[Tensor, "batch token head dim"]:
    """What heads wrote side by side, each by itself."""
    return output.reshape(*output.shape[:-1], heads, -1)


def projected(
    part: nn.Linear, tokens: Float[Tensor, "batch token width"], heads: int
) -> Float[Tensor, "batch head token dim"]:
    """What a projection makes of tokens, by head: the product alone, not a call that others would count."""
    made = F.linear(tokens, part.weight, part.bias)
    return made.view(*made.shape[:2], heads, -1).transpose(1, 2)


@dataclass(frozen=True, eq=False)
class CallListener:
    """Who wants to hear of an owner's attention: whether now, of each call, and of calls not understood."""

    active: Callable[[], bool]
    seen: Callable[[Seen], None]
    lost: Callable[[], None]
    thread: int = field(default_factory=get_ident)


class _Owner:
    def __init__(self, module: nn.Module) -> None:
        self.forward = module.forward
        self.listeners: list[CallListener] = []
        self.changes = Restoring()
        self.changes.forward(module, self.watching, everywhere=True)

    def watching(self, *args: Any, **kwargs: Any) -> Any:
        me = get_ident()
        listeners = [one for one in tuple(self.listeners) if one.thread == me and one.active()]
        if not listeners:
            return self.forward(*args, **kwargs)

        def report(call: Seen) -> None:
            for listener in listeners:
                listener.seen(call)

        watch = SoftmaxWatch(report)
        with unwatched(), watch:  # an owner around this one does not take these calls for its own
            result = self.forward(*args, **kwargs)
        if watch.lost:
            for listener in listeners:
                listener.lost()
        return result


_OWNERS: dict[nn.Module, _Owner] = {}
_CHANGING = Lock()


@contextmanager
def watched_owner(module: nn.Module, listener: CallListener) -> Iterator[None]:
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
