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

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Lock, get_ident
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.core.narrow_products import LIMIT, LIMITED_TO, narrow_products_are_deadly


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


# A probe leaves a model as it was: every module's mode, and the modules themselves.
#
# Some models rebuild themselves when they run (BigBird exchanges its block-sparse attention for a full one on short
# inputs, and keeps it). What a probe finds then is not the model that was given, so it is put back and refused.


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; every module's own mode again outside."""
    with Restoring() as changes:
        changes.evaluation(model)
        yield


@contextmanager
def without_cache(model: nn.Module) -> Iterator[None]:
    """Inside, no configuration of the model asks for a cache of keys and values, which would outlive a run."""
    configs = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    with Restoring() as changes:
        for config in configs.values():
            if getattr(config, "use_cache", False) is True:
                changes.callback(setattr, config, "use_cache", True)
                config.use_cache = False
        yield


class ExchangedModulesError(RefusalError):
    """A model exchanged modules of its own while it ran."""


@contextmanager
def keeping_its_modules(model: nn.Module) -> Iterator[None]:
    """Refuses models that exchange modules of their own inside the context, after putting the old ones back."""
    paths = {module: path for path, module in model.named_modules()}
    children = {module: dict(module._modules) for module in paths}
    failure: Exception | None = None
    with Restoring() as changes:
        changes.parts(model)
        try:
            yield
        except Exception as error:
            failure = error
        exchanged = [path for module, path in paths.items() if dict(module._modules) != children[module]]
    if exchanged:
        raise ExchangedModulesError(
            f"{type(model).__name__} exchanges modules of its own in {exchanged[0] or 'itself'} when it runs on a few "
            "tokens, so what a probe finds is not what you gave: give it sequences that are long enough for its sparse "
            "attention, or configure it for full attention (attention_type='original_full' for BigBird)."
        ) from failure
    if failure is not None:
        raise failure


# One thread at a time looks at a model.
#
# Every change that a measurement makes for a while acts in its own thread only (`restoring`), so whoever else runs the
# model meanwhile gets the model's own output. Two measurements of one model at once are another matter: each would put
# back modes and forwards that the other still needs. The second is refused, at once and in a sentence.

_LOOKING: dict[nn.Module, int] = {}  # which thread looks at a module
_CHANGING = Lock()


@contextmanager
def looking_at(model: nn.Module) -> Iterator[None]:
    """Inside, no other thread can begin to look at the model, or at a part of it. A thread may look twice."""
    _refuse_deadly_products(model)
    me = get_ident()
    modules = list(model.modules())
    with _CHANGING:
        if any(_LOOKING.get(module, me) != me for module in modules):
            raise RefusalError(
                f"Another scan is looking at this model ({type(model).__name__}) in another thread: wait until it has "
                "ended, or give this one a copy of the model."
            )
        new = [module for module in modules if module not in _LOOKING]
        _LOOKING.update(dict.fromkeys(new, me))
    try:
        yield
    finally:
        with _CHANGING:
            for module in new:
                del _LOOKING[module]


def _refuse_deadly_products(model: nn.Module) -> None:
    here = (p for p in model.parameters() if p.device.type in ("cpu", "meta"))
    narrow = (p for p in here if p.dtype in (torch.bfloat16, torch.float16))
    if next(narrow, None) is not None and narrow_products_are_deadly():
        raise RefusalError(
            "This processor announces AMX and stops the program at the first product in bfloat16 (a virtual machine "
            f"without tiles): set {LIMIT}={LIMITED_TO} in the environment before Python starts, or use float32."
        )


# With and without gradients, whatever mode the caller is in, and never in inference mode.
#
# Models keep tensors that they make on the way (position tables, windows) for the next run. One that was made in
# inference mode can never be used in training again, so a measurement must not make any.


@contextmanager
def without_gradients() -> Iterator[None]:
    with torch.inference_mode(False), torch.no_grad():
        yield


@contextmanager
def with_gradients() -> Iterator[None]:
    with torch.inference_mode(False), torch.enable_grad():
        yield


def outside_inference(tensor: Tensor) -> Tensor:
    """The tensor itself, or a copy of one that was made in inference mode and could not be used outside it."""
    return tensor.clone() if tensor.is_inference() and not torch.is_inference_mode_enabled() else tensor
