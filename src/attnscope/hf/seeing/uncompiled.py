"""The model inside a compiled one.

torch.compile wraps a module (`OptimizedModule`), hides a way to call it (`module.compile()`), or replaces its forward.
Compiled code runs no hooks and asks no registry, so nothing could be seen in it; the module inside has the same weights
and computes the same thing, and that one is measured. Nothing is compiled for it, and the given model is not touched:
where parts of it are compiled, the same weights get a second set of modules around them.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from torch import nn

from attnscope.core.errors import RefusalError

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
