"""Names of number formats and devices, checked before anything is loaded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import nn

from attnscope.core.errors import RefusalError, one_of
from attnscope.hf.intercepting.restoring import Restoring
from attnscope.hf.loading.options import DTYPES


def dtype_named(name: str) -> torch.dtype | None:
    """Return the torch dtype, or None for `auto`: as the weights are stored."""
    one_of(name, DTYPES, "dtype")
    found = None if name == "auto" else getattr(torch, name)
    assert found is None or isinstance(found, torch.dtype)
    return found


def device_named(name: str) -> torch.device:
    """Return the torch device; `auto` is the first accelerator, else the CPU."""
    if name == "auto":
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise RefusalError(f"There is no device '{name}': choose cpu, cuda, cuda:1, mps, xpu or auto.") from error
    if device.type == "cpu" and not device.index:
        return torch.device("cpu")
    found = torch.accelerator.current_accelerator(check_available=True)
    count = torch.accelerator.device_count() if found is not None else 0
    if found is None or found.type != device.type or (device.index or 0) >= count:
        have = "only cpu" if found is None else f"cpu and {count} of type {found.type}"
        raise RefusalError(f"The device '{name}' is not available here, which has {have}: pass `device='cpu'` or auto.")
    return device


def refuse_autocast() -> None:
    """Refuse to measure inside torch.autocast: it rounds products of the model, of the verifier and of the measures."""
    accelerator = torch.accelerator.current_accelerator()
    kinds = ("cpu", *(() if accelerator is None else (accelerator.type,)))
    for kind in kinds:
        if torch.is_autocast_enabled(kind):
            rounded = str(torch.get_autocast_dtype(kind)).removeprefix("torch.")
            raise RefusalError(
                f"torch.autocast is on for {kind} and would round what is measured to {rounded}: leave the "
                "torch.autocast context, and give the model in the precision that you mean."
            )


# Mixtures of experts: their grouped product has no float64 and hides single experts; a plain loop computes the same.


def with_plain_experts(model: Any) -> None:
    """Make a model run its experts in a loop, permanently: only for copies that attnscope owns."""
    choose = getattr(model, "set_experts_implementation", None)
    if callable(choose):
        with suppress(ValueError):  # transformers says so of models that have no choice
            choose("eager")


@contextmanager
def one_after_another(module: nn.Module) -> Iterator[None]:
    """Run experts as a loop of plain products inside the context."""
    configs = {id(c): c for m in module.modules() if (c := getattr(m, "config", None)) is not None}
    with Restoring() as changes:
        for config in configs.values():
            chosen = getattr(config, "_experts_implementation_internal", None)
            if chosen not in (None, "eager"):
                changes.callback(setattr, config, "_experts_implementation_internal", chosen)
                config._experts_implementation_internal = "eager"
        yield


def experts_in(model: nn.Module) -> str | None:
    """Return the class that holds a model's experts, or None."""
    names = (type(module).__name__ for module in model.modules())
    return next((name for name in names if re.search(r"Experts$|SparseMoe|MoE$|Moe$|SparseMLP", name)), None)


def cast(model: Any, precision: torch.dtype | None) -> None:
    """Parameters that a model makes in float32 whatever is asked for (XLNet's projections), in what was asked for.

    Those that it keeps in float32 beside half precision on purpose, and says so, stay; so do buffers (rotary
    frequencies), which are no weights, except that float64 is meant for all numbers and costs them nothing.
    """
    if precision is None:
        return
    if precision == torch.float64:
        nn.Module.to(model, precision)  # accelerate forbids `model.to` where weights are out of memory
        with_plain_experts(model)
        return
    kept: set[str] = set()
    if precision == torch.float16:
        kept |= set(getattr(model, "_keep_in_fp32_modules", None) or ())
    if precision in (torch.float16, torch.bfloat16):
        kept |= set(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
    for name, parameter in model.named_parameters():
        meant = parameter.is_floating_point() and not parameter.is_meta  # what is out of memory is cast as it is read
        if meant and not any(f".{word}." in f".{name}." for word in kept):
            parameter.data = parameter.data.to(precision)
