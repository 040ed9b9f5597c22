"""Settings in a config.json that no model can have, named before transformers stumbles over them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from attnscope.core.errors import RefusalError

# Widths and numbers of heads, in the spellings of all families: a model with none of them computes nothing.
_SIZE = re.compile(r"hidden_size|d_model|n_embd|head_dim|d_kv|(num_|n_)?(attention_|key_value_)?heads?|dim|embed_dim")
_LAYERS = re.compile(r"(num_|n_)(hidden_)?layers?")
_PRECISIONS = ("dtype", "torch_dtype")


def refuse_impossible_settings(config: Mapping[str, Any], name: str) -> None:
    """Sizes of zero or less, and number formats that torch does not have."""
    for place, key, value in _entries(config):
        if key in _PRECISIONS and not _is_precision(value):
            raise RefusalError(
                f"The configuration of {name} asks for the {place} {value!r:.60}, which torch does not have: write one "
                'that it has, such as "float32".'
            )
        if isinstance(value, bool) or not isinstance(value, int):
            continue
        if value < 1 and (_SIZE.fullmatch(key) or (_LAYERS.fullmatch(key) and place == key)):
            raise RefusalError(
                f"The configuration of {name} says {place} = {value}, and no model is that small: write the true one."
            )


def without_broken_packing(config: Mapping[str, Any], name: str, *, architecture_only: bool) -> dict[str, Any]:
    """How weights are packed does not matter to an architecture; where they are read, it must at least say how."""
    settings = dict(config)
    packing = settings.get("quantization_config")
    named = isinstance(packing, Mapping) and isinstance(packing.get("quant_method"), str)
    if packing is None or (architecture_only and isinstance(packing, Mapping)):
        settings.pop("quantization_config", None)
    elif not named:
        raise RefusalError(
            f"The configuration of {name} has a quantization_config that does not say its quant_method: take the entry "
            "out if the weights are plain numbers, or give the original weights."
        )
    return settings


def _entries(config: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str, Any]]:
    """Every setting with its place, those of configurations inside (`text_config`) too."""
    for key, value in config.items():
        place = f"{above}{key}"
        if isinstance(value, Mapping) and str(key).endswith("_config"):
            yield from _entries(value, f"{place}.")
        else:
            yield place, str(key), value


def _is_precision(value: Any) -> bool:
    if isinstance(value, Mapping):  # one for each part of a model
        return all(map(_is_precision, value.values()))
    if value is None or value == "auto":
        return True
    return isinstance(value, str) and isinstance(getattr(torch, value.removeprefix("torch."), None), torch.dtype)
