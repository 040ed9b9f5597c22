"""One forward pass on a probe batch, observed in three ways: module calls, torch functions, the attention registry.

The call log, the dissection, the lineage and the search for parameters each make one such run with their own observer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch import nn

from attnscope.hf.anatomy.example import Batch, run
from attnscope.hf.intercepting.masks import MaskReader
from attnscope.hf.intercepting.observed_call import ObservedCall, observe
from attnscope.hf.intercepting.pieces import pieces_joined
from attnscope.hf.intercepting.registry import RegistryWatcher, watched_registry
from attnscope.hf.intercepting.restoring import Restoring
from attnscope.hf.intercepting.torch_calls import Seen, SoftmaxWatch, WrittenOutCall
from attnscope.hf.intercepting.wrappers import without_fast_path

if TYPE_CHECKING:
    from attnscope.hf.anatomy.stacks import PlacedCall


@dataclass
class OpenCall:
    """A module call that has not ended."""

    module: nn.Module
    path: str
    nth: int  # counts the calls of this module
    number: int  # counts all module calls of the run


CallT = TypeVar("CallT", bound=OpenCall)


class ProbeObserver(ABC, Generic[CallT]):
    """Receives the module calls and attention calls of one probe run. `call_class` is the class that stores a call."""

    call_class: type[CallT]

    def __init__(self, model: nn.Module) -> None:
        self.paths = {module: path for path, module in model.named_modules()}
        self.masks = MaskReader()
        self.open: list[CallT] = []  # outermost first
        self._calls: Counter[str] = Counter()
        self._started = 0

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        path = self.paths[module]
        self.open.append(self.call_class(module, path, self._calls[path], self._started))
        self._started += 1
        self._calls[path] += 1
        return self.began(self.open[-1], args, kwargs)

    def leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        self.ended(self.open[-1], args, kwargs, output)
        self.open.pop()

    def began(self, call: CallT, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Handle the start of a module call. Return None, or arguments that replace its own."""

    def ended(self, call: CallT, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None: ...

    @abstractmethod
    def saw(self, call: Seen) -> None:
        """Handle attention in torch functions."""

    @abstractmethod
    def saw_interface(self, module: nn.Module, observed: ObservedCall) -> None:
        """Handle attention in a function of transformers' registry."""

    def scope(self) -> tuple[int, ...]:
        """Return the numbers of the open module calls, outermost first."""
        return tuple(call.number for call in self.open)

    def owner(self, call: Seen) -> str:
        """Return the path of the innermost module that contains the whole attention call."""
        begun = call.begun if isinstance(call, WrittenOutCall) else self.scope()
        innermost = max(set(begun) & set(self.scope()))
        return next(opened.path for opened in self.open if opened.number == innermost)


class CallMatcher(ProbeObserver[CallT]):
    """Matches every attention call of a run with the same call in the log."""

    def __init__(self, model: nn.Module, placed: tuple[PlacedCall, ...]) -> None:
        super().__init__(model)
        self.placed = placed
        self._sites = {(p.seen.owner, p.seen.nth): index for index, p in enumerate(placed)}
        self._attended: Counter[str] = Counter()

    @abstractmethod
    def attended(self, index: int, observed: ObservedCall) -> None:
        """Handle the attention call `placed[index]`."""

    def saw(self, call: Seen) -> None:
        owner = self.owner(call)
        seen = self.placed[self._sites[owner, self._attended[owner]]].seen
        self._next_of(owner, observe(call, self.masks, heads=seen.heads, batch=seen.batch))

    def saw_interface(self, module: nn.Module, observed: ObservedCall) -> None:
        self._next_of(self.paths[module], observed)

    def _next_of(self, owner: str, observed: ObservedCall) -> None:
        index = self._sites[owner, self._attended[owner]]
        self._attended[owner] += 1
        self.attended(index, observed)


def probe_run(
    model: nn.Module,
    batch: Batch,
    observer: ProbeObserver[Any],
    *,
    fast_path: bool = True,
    also: tuple[AbstractContextManager[Any], ...] = (),
) -> SoftmaxWatch:
    """Run `model` once on `batch` inside the contexts `also`, and restore it, even after an exception.

    Return the watch of torch functions, which knows in which scopes softmaxes ran and whether they multiplied values.
    `fast_path` says whether the model has torch's fused encoder path, which must be switched off.
    """
    watch = SoftmaxWatch(observer.saw, observer.scope)
    every = observer.paths.__contains__
    with Restoring() as changes:
        changes.callback(watch.forget)
        for module in observer.paths:
            changes.before(module, observer.enter)
            changes.after(module, observer.leave, kwargs=True)
        changes.enter_context(without_fast_path(fast_path))
        changes.enter_context(pieces_joined(model))
        registry = RegistryWatcher(every, observer.masks, observer.saw_interface, every)
        changes.enter_context(watched_registry(registry))
        changes.enter_context(torch.no_grad())
        for context in also:
            changes.enter_context(context)
        changes.enter_context(watch)
        run(model, batch)
    return watch
