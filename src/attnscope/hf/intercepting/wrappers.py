"""Handle models whose attention or weights are hidden: torch.compile, torch's fused encoder path, offloading.

    uncompiled(model)                                              the same weights, with nothing compiled
    in_reach(model)["model.layers.3.self_attn.o_proj.weight"]      read from disk if it is offloaded, and not kept
    with held(block): ...                                          keeps the weights of one block in memory

Compiled code runs no hooks and calls no registry, so it cannot be observed. The module inside it, which has the same
weights, is measured instead. If parts of a model are compiled, a copy of its modules shares the weights, and the
caller's model is not changed.

Offloaded parameters are on torch's meta device: they have a shape, but no numbers. The hooks of accelerate load them
before their module runs and drop them afterwards. Code that reads parameters outside a forward pass must use
`in_reach`.
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
    """Return `model` if nothing in it is compiled, otherwise an uncompiled module with the same weights."""
    while _is_wrapper(model):
        model = _inside(model)
    if not any(_is_compiled(module) for module in model.modules()):
        return model
    for path, module in model.named_modules():
        made_of = None if _is_wrapper(module) else _compiled_forward(module)
        if made_of is not None and getattr(made_of, "__func__", None) is not type(module).forward:
            raise RefusalError(
                f"The forward of {path or type(module).__name__} is a compiled function that is not the forward of its "
                "class, so it cannot be observed: give the model from before torch.compile."
            )
    return _with_the_same_weights(model)


def refuse_compiled(model: nn.Module) -> None:
    """Refuse a compiled model."""
    if any(_is_compiled(module) for module in model.modules()):
        raise RefusalError(
            f"{type(model).__name__} is compiled, and compiled code cannot be observed: give the model from before "
            "torch.compile (model._orig_mod)."
        )


def note_on(given: nn.Module, measured: nn.Module) -> dict[str, str]:
    """Return a provenance entry if the model was compiled and another module was measured."""
    return {} if given is measured else {"compiled": NOTE}


def _is_wrapper(module: nn.Module) -> bool:
    # Compare names, because importing the class would import the compiler, which takes seconds.
    return type(module).__name__ == "OptimizedModule" and isinstance(module._modules.get("_orig_mod"), nn.Module)


def _inside(wrapper: nn.Module) -> nn.Module:
    inner = wrapper._modules["_orig_mod"]
    assert inner is not None
    return inner


def _is_compiled(module: nn.Module) -> bool:
    return _is_wrapper(module) or module._compiled_call_impl is not None or _compiled_forward(module) is not None


def _compiled_forward(module: nn.Module) -> Any | None:
    """Return the function inside `module.forward = torch.compile(module.forward)`, or None."""
    return getattr(vars(module).get("forward"), "_torchdynamo_orig_callable", None)


def _with_the_same_weights(model: nn.Module) -> nn.Module:
    modules = list(model.modules())
    tensors = (t for module in modules for t in (*module._parameters.values(), *module._buffers.values()))
    known: dict[int, Any] = {id(tensor): tensor for tensor in tensors}  # shared, not copied
    for module in reversed(modules):  # inner wrappers first, because outer ones contain them
        if _is_wrapper(module):
            known[id(module)] = deepcopy(_inside(module), known)
    copy = deepcopy(model, known)  # torch does not copy the compiled call of a module
    for module in copy.modules():
        if _compiled_forward(module) is not None:
            del vars(module)["forward"]
    return copy


_ENABLED_BEFORE: list[bool] = []  # one entry per open context: the setting before the first


@contextmanager
def without_fast_path(needed: bool = True) -> Iterator[None]:
    """Switch off torch's fused encoder path, which hides attention, inside this context.

    Contexts may overlap in any order: the last one to leave restores the setting.
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
    """Return whether some parameters are not in memory."""
    return any(parameter.is_meta for parameter in model.parameters())


def in_reach(model: nn.Module) -> Mapping[str, Tensor]:
    """Return every parameter by name. An offloaded one is read when it is looked up."""
    return _InReach(model) if is_offloaded(model) else dict(model.named_parameters())


@contextmanager
def held(module: nn.Module) -> Iterator[None]:
    """Keep all weights of the module in memory inside this context, instead of loading them for each call."""
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
        if parameter.is_meta and name not in self._hooks:
            raise RefusalError(
                f"The weights {name} of {type(self._model).__name__} are on torch's meta device and hold no numbers: "
                "load the weights, or build the model on a real device."
            )
        return _read(*self._hooks[name]) if parameter.is_meta else parameter

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _hooked(model: nn.Module) -> Iterator[tuple[nn.Module, str, Any, str]]:
    """Yield (owner, name, hook, key of the hook) for every parameter that a hook loads."""
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
