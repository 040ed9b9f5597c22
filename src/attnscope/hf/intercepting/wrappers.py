"""What wraps a model and hides its attention or its weights: torch.compile, torch's fused encoder path, offloading.

    uncompiled(model)                                              the same weights, with nothing compiled
    in_reach(model)["model.layers.3.self_attn.o_proj.weight"]      read from where it is stored, and not kept
    with held(block): ...                                          the weights of one block, in memory for a while

Compiled code runs no hooks and asks no registry, so nothing can be seen in it. The module inside has the same weights
and computes the same thing, and that one is measured. The caller's model is not changed: if parts of it are compiled,
the same weights get a second set of modules around them.

Offloaded parameters are on torch's meta device, where they have a shape and no numbers; accelerate's hooks load a
module's own before it runs and drop them after. Code that reads parameters outside a forward pass must use `in_reach`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.hf.intercepting.restoring import Restoring

NOTE = "the module inside was measured"


def uncompiled(model: nn.Module) -> nn.Module:
    """Return `model` if nothing in it is compiled, else one with the same weights in which nothing is."""
    while _is_wrapper(model):
        model = _inside(model)
    if not any(_is_compiled(module) for module in model.modules()):
        return model
    for path, module in model.named_modules():
        made_of = None if _is_wrapper(module) else _compiled_forward(module)
        if made_of is not None and getattr(made_of, "__func__", None) is not type(module).forward:
            raise RefusalError(
                f"The forward of {path or type(module).__name__} is a compiled function that is not its class's own, "
                "and cannot be looked into: give the model as it was before torch.compile."
            )
    return _with_the_same_weights(model)


def refuse_compiled(model: nn.Module) -> None:
    """Refuse a compiled model, for callers that must work on the caller's own module."""
    if any(_is_compiled(module) for module in model.modules()):
        raise RefusalError(
            f"{type(model).__name__} is compiled, and nothing can be seen inside compiled code: give the model as it "
            "was before torch.compile (model._orig_mod where it was wrapped)."
        )


def note_on(given: nn.Module, measured: nn.Module) -> dict[str, str]:
    """Return a provenance entry if the model was compiled and another module was measured."""
    return {} if given is measured else {"compiled": NOTE}


def _is_wrapper(module: nn.Module) -> bool:
    # by name: importing the class imports the compiler, which takes seconds
    return type(module).__name__ == "OptimizedModule" and isinstance(module._modules.get("_orig_mod"), nn.Module)


def _inside(wrapper: nn.Module) -> nn.Module:
    inner = wrapper._modules["_orig_mod"]
    assert inner is not None
    return inner


def _is_compiled(module: nn.Module) -> bool:
    return _is_wrapper(module) or module._compiled_call_impl is not None or _compiled_forward(module) is not None


def _compiled_forward(module: nn.Module) -> Any | None:
    """Return the function that `m.forward = torch.compile(m.forward)` wrapped; None without such a forward."""
    return getattr(vars(module).get("forward"), "_torchdynamo_orig_callable", None)


def _with_the_same_weights(model: nn.Module) -> nn.Module:
    modules = list(model.modules())
    tensors = (t for module in modules for t in (*module._parameters.values(), *module._buffers.values()))
    known: dict[int, Any] = {id(tensor): tensor for tensor in tensors}  # shared, not copied
    for module in reversed(modules):  # inner wrappers first: outer ones hold them
        if _is_wrapper(module):
            known[id(module)] = deepcopy(_inside(module), known)
    copy = deepcopy(model, known)  # a copied module has no compiled call: torch leaves that out
    for module in copy.modules():
        if _compiled_forward(module) is not None:
            del vars(module)["forward"]
    return copy


_ENABLED_BEFORE: list[bool] = []  # one entry for every context below that is open, all the same


@contextmanager
def without_fast_path(needed: bool = True) -> Iterator[None]:
    """Inside, torch's encoder layers call their attention step by step, not as one fused kernel that hides it.

    Contexts may overlap in any order: the last one to be left restores the setting.
    """
    if not needed:
        yield
        return
    enabled = torch.backends.mha.get_fastpath_enabled()
    _ENABLED_BEFORE.append(_ENABLED_BEFORE[0] if _ENABLED_BEFORE else enabled)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        before = _ENABLED_BEFORE.pop()
        if not _ENABLED_BEFORE:
            torch.backends.mha.set_fastpath_enabled(before)


def is_offloaded(model: nn.Module) -> bool:
    """Return whether some of its parameters are out of memory now."""
    return any(parameter.is_meta for parameter in model.parameters())


def in_reach(model: nn.Module) -> Mapping[str, Tensor]:
    """Return every parameter by name; an offloaded one is read when it is looked up."""
    return _InReach(model) if is_offloaded(model) else dict(model.named_parameters())


@contextmanager
def held(module: nn.Module) -> Iterator[None]:
    """Keep all weights of the module in memory inside this context. Nothing is loaded or dropped when it runs."""
    with Restoring() as changes:
        for owner, name, hook, key in list(_hooked(module)):
            parameter = owner._parameters[name]
            if parameter is None or not parameter.is_meta:
                continue
            changes.callback(owner._parameters.__setitem__, name, parameter)
            owner._parameters[name] = nn.Parameter(_read(hook, key), requires_grad=False)
        for owner in module.modules():
            plain = vars(owner).get("_old_forward")
            if plain is not None and any(_offloading(owner)):
                changes.forward(owner, plain, everywhere=True)
        yield


class _InReach(Mapping[str, Tensor]):
    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._names = tuple(name for name, _ in model.named_parameters())
        paths = {module: path for path, module in model.named_modules()}
        self._hooks = {f"{paths[owner]}.{name}".lstrip("."): (hook, key) for owner, name, hook, key in _hooked(model)}

    def __getitem__(self, name: str) -> Tensor:
        parameter = self._model.get_parameter(name)
        return _read(*self._hooks[name]) if parameter.is_meta else parameter

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _hooked(model: nn.Module) -> Iterator[tuple[nn.Module, str, Any, str]]:
    """Yield owner and name of every parameter that a hook loads, the hook, and the hook's key for it."""
    for module in model.modules():
        for hook in _offloading(module):
            for key, _ in module.named_parameters(recurse=bool(hook.place_submodules), remove_duplicate=False):
                path, _, name = key.rpartition(".")
                yield module.get_submodule(path), name, hook, key


def _offloading(module: nn.Module) -> Iterator[Any]:
    hook = vars(module).get("_hf_hook")
    for single in getattr(hook, "hooks", (hook,)):  # accelerate joins several hooks into one
        if getattr(single, "offload", False) and getattr(single, "weights_map", None) is not None:
            yield single


def _read(hook: Any, key: str) -> Tensor:
    stored: Tensor = hook.weights_map[key]
    return stored.to(torch.device("cpu" if hook.execution_device is None else hook.execution_device))
