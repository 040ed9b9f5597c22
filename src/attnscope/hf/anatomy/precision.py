"""Find modules that compute in float32 inside a float64 model, and suppress their casts.

Many norms (such as Llama's) and some softmaxes cast to float32. Such modules are recognised because their output does
not change if their input changes in the tenth digit. `widened` suppresses these casts while it is active.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attnscope.hf.intercepting.restoring import Restoring

_NUDGE = 1e-10  # far below float32's rounding (6e-8) and far above float64's (1e-16)
_UNMOVED = 0.9  # share of unchanged outputs: half for a ReLU, nearly all for float32


def coarse_modules(model: nn.Module, inputs: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the class names of modules that compute in less than float64; () if the model is not in float64."""
    coarse: dict[str, None] = {}

    def look(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        name = type(module).__name__
        if name in coarse or len(args) != 1 or not isinstance(args[0], Tensor) or not isinstance(output, Tensor):
            return
        taken = args[0]
        if taken.dtype != torch.float64 or output.dtype != torch.float64 or taken.shape != output.shape:
            return
        nudged = taken * (1 + _NUDGE * torch.linspace(-1, 1, taken.shape[-1], dtype=taken.dtype, device=taken.device))
        again = module.forward(nudged)
        moved = nudged != taken
        same = (again == output) & moved
        if bool(moved.any()) and float(same.sum() / moved.sum()) > _UNMOVED and not bool((output == 0).all()):
            coarse[name] = None

    with Restoring() as changes:
        for module in model.modules():
            if not any(True for _ in module.children()):
                changes.after(module, look)
        with torch.no_grad():
            model(**inputs)
    return tuple(coarse)


class widened(TorchFunctionMode):  # noqa: N801 - used as `with widened():`
    """Suppress casts from float64 to float32: `x.to(torch.float32)`, `x.float()`, `softmax(x, dtype=...)`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if args and isinstance(args[0], Tensor) and args[0].dtype == torch.float64:
            wanted = (*args[1:], *kwargs.values())
            if func is Tensor.float or (func in (Tensor.to, Tensor.type) and any(w is torch.float32 for w in wanted)):
                return args[0]
            if kwargs.get("dtype") is torch.float32:
                kwargs = {**kwargs, "dtype": torch.float64}
        return func(*args, **kwargs)
