"""Change a model temporarily: every change is undone when the context is left, even by an exception.

    with Restoring() as changes:
        changes.before(module, look_at_inputs)
        changes.forward(block, answer_from_memory)
        model(**batch)

Hooks and forwards act only in the thread that added them, not on forward passes in other threads. Changes are undone in
reverse order. `enter_context` adds any other context.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from threading import Lock, get_ident
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from attnscope.core.amx_check import LIMIT, LIMITED_TO, half_precision_crashes
from attnscope.core.errors import RefusalError

Kept = TypeVar("Kept")


class Restoring(ExitStack[bool | None]):
    """Change hooks, forwards, modes and submodules, and restore them on exit."""

    def before(
        self, module: nn.Module, hook: Callable[..., Any], *, kwargs: bool = True, prepend: bool = False
    ) -> None:
        """Run `hook(module, args, kwargs)` before every call of the module."""
        hook = _in_this_thread(hook)
        self.callback(module.register_forward_pre_hook(hook, with_kwargs=kwargs, prepend=prepend).remove)

    def after(self, module: nn.Module, hook: Callable[..., Any], *, kwargs: bool = False, always: bool = False) -> None:
        """Run `hook(module, args, output)` after every call; with `always`, also after a call that failed."""
        hook = _in_this_thread(hook)
        self.callback(module.register_forward_hook(hook, with_kwargs=kwargs, always_call=always).remove)

    def nth_calls(
        self,
        model: nn.Module,
        calls: Mapping[tuple[str, int], Kept],
        *,
        before: Callable[[Kept, tuple[Any, ...], dict[str, Any]], Any] | None = None,
        after: Callable[[Kept, Any], Any] | None = None,
    ) -> None:
        """Run `before(kept, args, kwargs)` and `after(kept, output)` around some calls of some modules.

        `calls` maps the path of a module and the number of its call to the first argument of the hooks. Calls are
        counted in every forward pass of `model`. A hook may return other arguments or another output, or None.
        """
        begun: Counter[str] = Counter()
        ended: Counter[str] = Counter()

        def restart(*ignored: Any) -> None:
            begun.clear()
            ended.clear()

        def hooks(path: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
            def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
                kept = calls.get((path, begun[path]))
                begun[path] += 1
                return None if kept is None or before is None else before(kept, args, kwargs)

            def leave(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
                kept = calls.get((path, ended[path]))
                ended[path] += 1
                return None if kept is None or after is None else after(kept, output)

            return enter, leave

        self.before(model, restart, kwargs=False, prepend=True)
        for path in dict.fromkeys(path for path, _ in calls):
            enter, leave = hooks(path)
            if before is not None:
                self.before(model.get_submodule(path), enter)
            if after is not None:
                self.after(model.get_submodule(path), leave)

    def forward(self, module: nn.Module, stand_in: Callable[..., Any], *, everywhere: bool = False) -> None:
        """Call `stand_in` instead of the module's forward; with `everywhere`, also in other threads."""
        own = vars(module).get("forward")  # set on this module, not on its class
        vars(module)["forward"] = stand_in if everywhere else _in_this_thread(stand_in, module.forward)
        if own is None:
            self.callback(vars(module).pop, "forward", None)
        else:
            self.callback(vars(module).__setitem__, "forward", own)

    def evaluation(self, model: nn.Module) -> None:
        """Put every module of the model into evaluation mode."""
        for module in model.modules():
            self.callback(setattr, module, "training", module.training)
        model.eval()

    def parts(self, model: nn.Module) -> None:
        """Save submodules, and settings that are strings: some models change these when they run."""
        config = getattr(model, "config", None)
        for owner in (*model.modules(), *(() if config is None else (config,))):
            settings = {name: value for name, value in vars(owner).items() if isinstance(value, str)}
            self.callback(vars(owner).update, settings)
        for module in model.modules():
            self.callback(module._modules.update, dict(module._modules))
            self.callback(module._modules.clear)


def _in_this_thread(function: Callable[..., Any], elsewhere: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Return a function that calls `function` in this thread, and `elsewhere` (or nothing) in other threads.

    A hook does nothing while torch compiles a graph: it would see no numbers and break the graph.
    """
    mine = get_ident()

    def chosen(*args: Any, **kwargs: Any) -> Any:
        if elsewhere is None and torch.compiler.is_compiling():
            return None
        if get_ident() == mine:
            return function(*args, **kwargs)
        return None if elsewhere is None else elsewhere(*args, **kwargs)

    return chosen


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Set evaluation mode inside this context, and restore the mode of every module afterwards."""
    with Restoring() as changes:
        changes.evaluation(model)
        yield


@contextmanager
def without_cache(model: nn.Module) -> Iterator[None]:
    """Turn off the key-value cache in all configurations of the model inside this context."""
    configs = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    with Restoring() as changes:
        for config in configs.values():
            if getattr(config, "use_cache", False) is True:
                changes.callback(setattr, config, "use_cache", True)
                config.use_cache = False
        yield


class ExchangedModulesError(RefusalError):
    """Raised if the model replaced some of its own modules while it ran."""


@contextmanager
def keeping_its_modules(model: nn.Module) -> Iterator[None]:
    """Refuse a model that replaces its own modules inside this context, and restore them.

    For example, BigBird permanently replaces its block-sparse attention by full attention on short inputs, so that a
    probe would describe another model than the caller's.
    """
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
            f"{type(model).__name__} replaces modules in {exchanged[0] or 'itself'} when it runs on few tokens, so a "
            "probe would describe another model: give sequences that are long enough for its sparse attention, or "
            "configure full attention (attention_type='original_full' for BigBird)."
        ) from failure
    if failure is not None:
        raise failure


_LOOKING: dict[nn.Module, int] = {}  # the thread that measures a module
_CHANGING = Lock()


@contextmanager
def looking_at(model: nn.Module) -> Iterator[None]:
    """Refuse other threads that begin to measure the model or a part of it. The same thread may enter twice.

    Each of two simultaneous measurements would restore modes and forwards that the other still needs. Threads that only
    run the model are not refused.
    """
    _refuse_crashing_products(model)
    me = get_ident()
    modules = list(model.modules())
    with _CHANGING:
        if any(_LOOKING.get(module, me) != me for module in modules):
            raise RefusalError(
                f"This model ({type(model).__name__}) is being measured in another thread: wait until that has ended, "
                "or use a copy of the model."
            )
        new = [module for module in modules if module not in _LOOKING]
        _LOOKING.update(dict.fromkeys(new, me))
    try:
        yield
    finally:
        with _CHANGING:
            for module in new:
                del _LOOKING[module]


def _refuse_crashing_products(model: nn.Module) -> None:
    here = (p for p in model.parameters() if p.device.type in ("cpu", "meta"))
    if any(p.dtype in (torch.bfloat16, torch.float16) for p in here) and half_precision_crashes():
        raise RefusalError(
            "This processor reports AMX but would crash at the first product in bfloat16 (a virtual machine without "
            f"AMX tiles): set {LIMIT}={LIMITED_TO} in the environment before Python starts, or use float32."
        )


@contextmanager
def without_gradients() -> Iterator[None]:
    """Disable gradients inside this context, without inference mode.

    Models cache tensors (position tables, windows). A tensor from inference mode could not be used in training later.
    """
    with torch.inference_mode(False), torch.no_grad():
        yield


@contextmanager
def with_gradients() -> Iterator[None]:
    """Enable gradients inside this context, even within inference mode."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


def outside_inference(tensor: Tensor) -> Tensor:
    """Return the tensor, or a copy if it was made in inference mode and cannot be used outside it."""
    return tensor.clone() if tensor.is_inference() and not torch.is_inference_mode_enabled() else tensor
