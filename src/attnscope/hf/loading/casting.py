"""One number format for all weights of a model, without a copy of what has it already."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from attnscope.hf.loading.experts import with_plain_experts


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
