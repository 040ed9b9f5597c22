"""The one way to change a model for a while: every change is undone when the context is left, by an exception too.

    with Restoring() as changes:
        changes.before(module, look_at_inputs)
        changes.forward(block, answer_from_memory)
        model(**batch)

Hooks and forwards act in the thread that put them there: a forward of the same model that somebody runs in another
thread meanwhile passes through untouched. Changes are undone in reverse order. Contexts that a change needs beside
itself can be entered with `enter_context`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from threading import get_ident
from typing import Any

import torch
from torch import nn


class Restoring(ExitStack[bool | None]):
    """Hooks, forwards, modes and parts of modules: each is changed by a method here, which remembers what it was."""

    def before(
        self, module: nn.Module, hook: Callable[..., Any], *, kwargs: bool = True, prepend: bool = False
    ) -> None:
        """`hook(module, args, kwargs)` runs before every call of the module."""
        hook = _in_this_thread(hook)
        self.callback(module.register_forward_pre_hook(hook, with_kwargs=kwargs, prepend=prepend).remove)

    def after(self, module: nn.Module, hook: Callable[..., Any], *, kwargs: bool = False, always: bool = False) -> None:
        """`hook(module, args, output)` runs after every call; `always` also after one that failed."""
        hook = _in_this_thread(hook)
        self.callback(module.register_forward_hook(hook, with_kwargs=kwargs, always_call=always).remove)

    def forward(self, module: nn.Module, stand_in: Callable[..., Any], *, everywhere: bool = False) -> None:
        """`stand_in` is called instead of the module's own forward; `everywhere`: in other threads too."""
        own = vars(module).get("forward")  # a forward of this one module, not of its class
        vars(module)["forward"] = stand_in if everywhere else _in_this_thread(stand_in, module.forward)
        if own is None:
            self.callback(vars(module).pop, "forward", None)
        else:
            self.callback(vars(module).__setitem__, "forward", own)

    def evaluation(self, model: nn.Module) -> None:
        """Evaluation mode for every module of the model."""
        for module in model.modules():
            self.callback(_set_mode, module, module.training)
        model.eval()

    def parts(self, model: nn.Module) -> None:
        """Whatever the model does to itself from here on: its submodules, and settings that are words."""
        config = getattr(model, "config", None)
        for thing in (*model.modules(), *(() if config is None else (config,))):
            self.callback(vars(thing).update, _words(thing))
        for module in model.modules():
            self.callback(_set_children, module, dict(module._modules))


def _in_this_thread(function: Callable[..., Any], elsewhere: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """`function` in the thread that asks for it now; in others `elsewhere`, or nothing. A hook that is compiled into
    somebody's graph does nothing there: it could see no numbers, and would break the graph in two."""
    mine = get_ident()

    def chosen(*args: Any, **kwargs: Any) -> Any:
        if elsewhere is None and torch.compiler.is_compiling():
            return None
        if get_ident() == mine:
            return function(*args, **kwargs)
        return None if elsewhere is None else elsewhere(*args, **kwargs)

    return chosen


def _set_mode(module: nn.Module, training: bool) -> None:
    module.training = training


def _set_children(module: nn.Module, children: dict[str, nn.Module | None]) -> None:
    module._modules.clear()
    module._modules.update(children)


def _words(thing: object) -> dict[str, str]:
    """Settings that are words: which kind of attention, for one."""
    return {name: value for name, value in vars(thing).items() if isinstance(value, str)}
