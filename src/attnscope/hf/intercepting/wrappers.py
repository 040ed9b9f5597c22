"""Weights that are out of memory while nobody uses them: accelerate loads a module's own before it runs and
drops them after it.

    in_reach(model)["model.layers.3.self_attn.o_proj.weight"]      read from where it lies, and kept by nobody
    with held(block): ...                                          the weights of one block, in memory for a while

Parameters that are out of memory are on torch's meta device, where they have a shape and no numbers: whoever reads
numbers of parameters outside a forward pass reads them through here.
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

# The model inside a compiled one.
#
# torch.compile wraps a module (`OptimizedModule`), hides a way to call it (`module.compile()`), or replaces its
# forward. Compiled code runs no hooks and asks no registry, so nothing could be seen in it; the module inside has the
# same weights and computes the same thing, and that one is measured. Nothing is compiled for it, and the given model
# is not touched: where parts of it are compiled, the same weights get a second set of modules around them.

NOTE = "the module inside was measured"


def uncompiled(model: nn.Module) -> nn.Module:
    """`model` itself where nothing in it is compiled, else one with the same weights in which nothing is."""
    while _is_wrapper(model):
        model = _inside(model)
    if not any(_is_compiled(module) for module in model.modules()):
        return model
    for path, module in model.named_modules():
        _refuse_foreign_forward(path, module)
    return _with_the_same_weights(model)


def refuse_compiled(model: nn.Module) -> None:
    """For whoever works on the very module that was given, and cannot take the one inside for it."""
    if any(_is_compiled(module) for module in model.modules()):
        raise RefusalError(
            f"{type(model).__name__} is compiled, and nothing can be seen inside compiled code: give the model as it "
            "was before torch.compile (model._orig_mod where it was wrapped)."
        )


def note_on(given: nn.Module, measured: nn.Module) -> dict[str, str]:
    """For the provenance: that the model was compiled and what was measured instead; nothing where it was not."""
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
    """What a forward of this one module (`m.forward = torch.compile(m.forward)`) was made of; None without one."""
    return getattr(vars(module).get("forward"), "_torchdynamo_orig_callable", None)


def _refuse_foreign_forward(path: str, module: nn.Module) -> None:
    made_of = None if _is_wrapper(module) else _compiled_forward(module)
    if made_of is not None and getattr(made_of, "__func__", None) is not type(module).forward:
        raise RefusalError(
            f"The forward of {path or type(module).__name__} is a compiled function that is not its class's own, and "
            "cannot be looked into: give the model as it was before torch.compile."
        )


def _with_the_same_weights(model: nn.Module) -> nn.Module:
    known: dict[int, Any] = {id(tensor): tensor for tensor in _tensors(model)}  # shared, not copied
    for module in reversed(list(model.modules())):  # inner wrappers first: outer ones hold them
        if _is_wrapper(module):
            known[id(module)] = deepcopy(_inside(module), known)
    copy = deepcopy(model, known)  # a copied module has no compiled call: torch leaves that out
    for module in copy.modules():
        if _compiled_forward(module) is not None:
            del vars(module)["forward"]
    return copy


def _tensors(model: nn.Module) -> Iterator[Any]:
    for module in model.modules():
        yield from module._parameters.values()
        yield from module._buffers.values()


# torch's own encoder layers run as one fused kernel in evaluation, which would hide their attention.

_ENABLED_BEFORE: list[bool] = []  # one entry for every context below that is open, all the same


@contextmanager
def without_fast_path(needed: bool = True) -> Iterator[None]:
    """Inside, torch's encoder layers call their attention one step at a time.

    Contexts may overlap in any order: the setting is as it was when the last one is left.
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
    """Whether some of its parameters are out of memory now."""
    return any(parameter.is_meta for parameter in model.parameters())


def in_reach(model: nn.Module) -> Mapping[str, Tensor]:
    """Every parameter by name, as it is now; one that is out of memory is read when it is asked for."""
    return _InReach(model) if is_offloaded(model) else dict(model.named_parameters())


@contextmanager
def held(module: nn.Module) -> Iterator[None]:
    """Inside, all weights of the module are in memory, and nothing is read or dropped when it runs."""
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
    """Owner and name of every parameter that a hook brings, the hook, and what the hook calls it."""
    for module in model.modules():
        for hook in _offloading(module):
            for key, _ in module.named_parameters(recurse=bool(hook.place_submodules), remove_duplicate=False):
                path, _, name = key.rpartition(".")
                yield module.get_submodule(path), name, hook, key


def _offloading(module: nn.Module) -> Iterator[Any]:
    hook = vars(module).get("_hf_hook")
    for one in getattr(hook, "hooks", (hook,)):  # several in a row are one hook to accelerate
        if getattr(one, "offload", False) and getattr(one, "weights_map", None) is not None:
            yield one


def _read(hook: Any, key: str) -> Tensor:
    found: Tensor = hook.weights_map[key]
    place = torch.device("cpu") if hook.execution_device is None else torch.device(hook.execution_device)
    return found.to(place)
