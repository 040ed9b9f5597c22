"""Weights that are out of memory while nobody uses them: accelerate's hooks put a module's own in before it runs and
take them out after it.

    in_reach(model)["model.layers.3.self_attn.o_proj.weight"]      read from where it lies, and kept by nobody
    with held(block): ...                                          the weights of one block, in memory for a while

Parameters that are out of memory are on torch's meta device, where they have a shape and no numbers: whoever reads
numbers of parameters outside a forward pass reads them through here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.hf.seeing.restoring import Restoring


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
