"""Names of number formats and devices, checked before anything is loaded."""

from __future__ import annotations

import torch

from attnscope.core.errors import RefusalError
from attnscope.hf.loading.options import refuse_unknown_dtype


def dtype_named(name: str) -> torch.dtype | None:
    """None stands for `auto`: the format in which the weights are stored."""
    refuse_unknown_dtype(name)
    found = None if name == "auto" else getattr(torch, name)
    assert found is None or isinstance(found, torch.dtype)
    return found


def device_named(name: str) -> torch.device:
    """`auto` is the first accelerator there is, else the processor."""
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
        raise RefusalError(f"The device '{name}' is not available here, which has {have}: pass --device cpu or auto.")
    return device
