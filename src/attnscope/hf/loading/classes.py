"""Which class holds a model, what kind of model it is, and what its inputs may be.

A configuration names its class in `architectures`. Where it does not, or the name is unknown, the usual heads
of its model type come first and the bare body last, since a head without weights must not be made up.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal

import torch
import transformers
from torch import nn
from transformers.models.auto import modeling_auto as auto

from attnscope.core.errors import RefusalError, one_of
from attnscope.hf.intercepting.restoring import Restoring
from attnscope.hf.loading.options import DTYPES

Kind = Literal["causal", "masked", "encoder-decoder", "vision", "audio", "multimodal"]


def candidates(config: Any) -> list[Any]:
    """Return classes to try, the best first; the last is the body without a head."""
    named = [getattr(transformers, name, None) for name in config.architectures or ()]
    found = [cls for cls in named if inspect.isclass(cls) and issubclass(cls, transformers.PreTrainedModel)]
    if not found:
        found = [mapping[type(config)] for mapping in _heads(config) if type(config) in mapping]
    if type(config) in auto.MODEL_MAPPING:
        body = auto.MODEL_MAPPING[type(config)]
        found.append(body[0] if isinstance(body, tuple) else body)
    return list(dict.fromkeys(found))


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


def kind_of(model: nn.Module) -> Kind:
    config: Any = model.config
    senses = [f"{sense}_config" for sense in ("text", "vision", "audio") if hasattr(config, f"{sense}_config")]
    if "text_config" in senses and len(senses) > 1:
        return "multimodal"
    match getattr(model, "main_input_name", "input_ids"):
        case "pixel_values" | "pixel_values_videos":
            return "vision"
        case "input_features" | "input_values":
            return "audio"
    if config.is_encoder_decoder:
        return "encoder-decoder"
    generates = type(config) in auto.MODEL_FOR_CAUSAL_LM_MAPPING
    reads_both_ways = type(config) in auto.MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", False)
    return "causal" if generates and not reads_both_ways else "masked"


def positions_of(model: nn.Module) -> int | None:
    """Return the longest sequence of tokens, or None if the configuration sets no limit."""
    config: Any = model.config
    text = config.get_text_config()
    limits = [getattr(text, name, None) for name in ("max_position_embeddings", "max_target_positions")]
    known = [limit for limit in limits if isinstance(limit, int) and limit > 0]
    if not known:
        return None
    # RoBERTa and its kin number positions from padding index + 1: their table has fewer places than rows.
    unused = [
        module.padding_idx + 1
        for name, module in model.named_modules()
        if type(module) is nn.Embedding and name.endswith("position_embeddings") and module.padding_idx is not None
    ]
    return min(known) - max(unused, default=0)


def vocab_size_of(model: Any) -> int | None:
    try:
        embeddings = model.get_input_embeddings()
    except NotImplementedError:
        return None
    return embeddings.num_embeddings if isinstance(embeddings, nn.Embedding) else None


def decoder_start_of(model: nn.Module) -> int | None:
    """Return the first token that a decoder reads, or None if the model is not an encoder-decoder."""
    config: Any = model.config
    if not config.is_encoder_decoder:
        return None
    names = ("decoder_start_token_id", "bos_token_id", "pad_token_id")
    return next((token for name in names if isinstance(token := getattr(config, name, None), int)), 0)


def accepted_by(model: nn.Module) -> frozenset[str]:
    return frozenset(inspect.signature(model.forward).parameters)


def reads_text(model: Any) -> bool:
    """Return whether token ids are enough: yes for a vision-language model, no for CLIP."""
    kind = kind_of(model)
    return kind not in ("vision", "audio") and (kind != "multimodal" or model.can_generate())


def is_pooler(parameter: str, shape: Iterable[int]) -> bool:
    """Whether a parameter belongs to the layer that BERT's kin put after the last block, to sum up [CLS].

    Nothing reads its output but a classifier, so no stream and no attention depends on it.
    """
    parts = parameter.split(".")
    return "pooler" in parts and len(tuple(shape)) <= 2 and not any("att" in part for part in parts)


# Names of number formats and devices, checked before anything is loaded.


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
    """Cast parameters that a model creates in float32 in spite of the requested precision (XLNet's projections).

    Parameters that a model declares to keep in float32 stay, and so do buffers (rotary frequencies). float64 casts
    everything.
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
