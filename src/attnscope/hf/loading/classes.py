"""Choose the class of a model, its dtype and its device.

A configuration names its class in `architectures`. If it names none, or an unknown one, try the usual heads of its
model type, then the body without a head: a head must not get random weights.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
import transformers
from torch import nn
from transformers.models.auto import modeling_auto as auto

from attnscope.core.errors import RefusalError, one_of
from attnscope.hf.intercepting.restoring import Restoring
from attnscope.hf.loading.options import DTYPES


def candidates(config: Any) -> list[Any]:
    """Return classes to try, the best first; the last is the body without a head."""
    named = [getattr(transformers, name, None) for name in config.architectures or ()]
    choices = [cls for cls in named if inspect.isclass(cls) and issubclass(cls, transformers.PreTrainedModel)]
    if not choices:
        choices = [mapping[type(config)] for mapping in _heads(config) if type(config) in mapping]
    if type(config) in auto.MODEL_MAPPING:
        body = auto.MODEL_MAPPING[type(config)]
        choices.append(body[0] if isinstance(body, tuple) else body)
    return list(dict.fromkeys(choices))


def _heads(config: Any) -> list[Any]:
    if config.is_encoder_decoder:
        return [auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING, auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING]
    if getattr(config, "is_decoder", False):
        return [auto.MODEL_FOR_CAUSAL_LM_MAPPING]
    return [auto.MODEL_FOR_MASKED_LM_MAPPING, auto.MODEL_FOR_CAUSAL_LM_MAPPING]


def remote_class(config: dict[str, Any]) -> Any:
    """Return the Auto class that loads a model's own code."""
    offered = config.get("auto_map", {})
    wished = ("AutoModelForCausalLM", "AutoModelForMaskedLM", "AutoModelForSeq2SeqLM", "AutoModel")
    return getattr(transformers, next((name for name in wished if name in offered), "AutoModel"))


def is_pooler(parameter: str, shape: Iterable[int]) -> bool:
    """Return whether a parameter belongs to a pooler, the linear map that reads [CLS] after the last block of BERT.

    Only a classifier reads its output: no stream and no attention depends on it.
    """
    parts = parameter.split(".")
    return "pooler" in parts and len(tuple(shape)) <= 2 and not any("att" in part for part in parts)


def dtype_named(name: str) -> torch.dtype | None:
    """Return the torch dtype, or None for `auto`, which keeps the stored dtype."""
    one_of(name, DTYPES, "dtype")
    dtype = None if name == "auto" else getattr(torch, name)
    assert dtype is None or isinstance(dtype, torch.dtype)
    return dtype


def device_named(name: str) -> torch.device:
    """Return the torch device. `auto` is the first accelerator, or the CPU if there is none."""
    if name == "auto":
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise RefusalError(f"There is no device '{name}': choose cpu, cuda, cuda:1, mps, xpu or auto.") from error
    if device.type == "cpu" and not device.index:
        return torch.device("cpu")
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    count = torch.accelerator.device_count() if accelerator is not None else 0
    if accelerator is None or accelerator.type != device.type or (device.index or 0) >= count:
        have = "only cpu" if accelerator is None else f"cpu and {count} of type {accelerator.type}"
        raise RefusalError(f"The device '{name}' is not available (there is {have}): pass `device='cpu'` or auto.")
    return device


def refuse_autocast() -> None:
    """Refuse to measure inside torch.autocast: it rounds products in the model and in the measures."""
    accelerator = torch.accelerator.current_accelerator()
    kinds = ("cpu", *(() if accelerator is None else (accelerator.type,)))
    for kind in kinds:
        if torch.is_autocast_enabled(kind):
            rounded = str(torch.get_autocast_dtype(kind)).removeprefix("torch.")
            raise RefusalError(
                f"torch.autocast is on for {kind} and would round the measured numbers to {rounded}: leave the "
                "torch.autocast context, and cast the model itself if you want that precision."
            )


# Mixtures of experts: the grouped product does not support float64 and hides single experts. A loop computes the same.


def with_plain_experts(model: Any) -> None:
    """Make a model run its experts in a loop, permanently: only for copies that attnscope owns."""
    choose = getattr(model, "set_experts_implementation", None)
    if callable(choose):
        with suppress(ValueError):  # raised by models that have only one implementation
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
    """Return the class name of a model's experts, or None."""
    names = (type(module).__name__ for module in model.modules())
    return next((name for name in names if re.search(r"Experts$|SparseMoe|MoE$|Moe$|SparseMLP", name)), None)


def cast(model: Any, precision: torch.dtype | None) -> None:
    """Cast parameters that a model creates in float32 whatever dtype is requested (such as XLNet's projections).

    Buffers (rotary frequencies) and parameters that the model declares as float32 are not cast, except to float64.
    """
    if precision is None:
        return
    if precision == torch.float64:
        nn.Module.to(model, precision)  # accelerate forbids `model.to` if weights are offloaded
        with_plain_experts(model)
        return
    kept: set[str] = set()
    if precision == torch.float16:
        kept |= set(getattr(model, "_keep_in_fp32_modules", None) or ())
    if precision in (torch.float16, torch.bfloat16):
        kept |= set(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
    for name, parameter in model.named_parameters():
        castable = parameter.is_floating_point() and not parameter.is_meta  # offloaded weights are cast when they load
        if castable and not any(f".{word}." in f".{name}." for word in kept):
            parameter.data = parameter.data.to(precision)
