"""Checks of model files: GGUF headers, number types in safetensors, and settings in config.json."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from safetensors import safe_open

from attnscope.core.errors import RefusalError

# GGUF files: a check that one is whole, and a header that is read once.
#
# transformers parses the header (with its whole vocabulary) anew for the configuration, the weights and the
# tokenizer, which takes longer than unpacking the weights. While a file is open here, all share one reader.
# What transformers drops on the way, whether texts begin with BOS, is read here.


@dataclass(frozen=True)
class Header:
    """What a GGUF file states about BOS; None if nothing."""

    adds_bos: bool | None = None
    bos: int | None = None


@contextmanager
def open_gguf(path: Path) -> Iterator[Header]:
    """Share one `gguf.GGUFReader(path)` inside the context; refuse a truncated file."""
    with path.open("rb") as handle:
        if handle.read(4) != b"GGUF":
            raise RefusalError(f"{path} does not begin like a GGUF file: fetch it again.")
    if not all(map(find_spec, ("gguf", "accelerate"))):
        raise RefusalError(
            f"Reading {path.name} needs the packages gguf and accelerate: pip install 'attnscope[gguf]'."
        )
    import gguf

    reader_class = gguf.GGUFReader
    try:
        reader = reader_class(path)
    except Exception as error:  # it walks the mapped file, and fails in many ways where that ends early
        raise RefusalError(
            f"{path} is damaged or cut short ({type(error).__name__} while reading it): fetch it again."
        ) from error

    def shared(file: Any, *rest: Any) -> Any:
        return reader if Path(file) == path else reader_class(file, *rest)

    gguf.GGUFReader = shared
    try:
        yield _header(reader)
    finally:
        gguf.GGUFReader = reader_class


def _header(reader: Any) -> Header:
    """Return a field; ignore fields of any other type."""
    adds, bos = (_value(reader, f"tokenizer.ggml.{name}") for name in ("add_bos_token", "bos_token_id"))
    whole = isinstance(bos, int) and not isinstance(bos, bool)
    return Header(adds if isinstance(adds, bool) else None, bos if whole else None)


def _value(reader: Any, name: str) -> Any:
    field = reader.get_field(name)
    return None if field is None else field.contents()


# What kind of numbers a safetensors file holds, from its header alone.


def refuse_whole_numbers(files: Iterable[Path], name: str) -> None:
    """Refuse integers or booleans as weights: transformers would silently turn them into fractions.

    Masks and counters beside the weights (`attn.bias` of GPT-2, `position_ids`) may be integers.
    """
    for file in files:
        with safe_open(file, framework="pt") as stored:
            for key in stored.keys():  # noqa: SIM118 (not a mapping)
                tensor = stored.get_slice(key)
                kind, axes, last = str(tensor.get_dtype()), len(tensor.get_shape()), key.rsplit(".", 1)[-1]
                is_weight = last in ("weight", "gamma", "beta") or (last == "bias" and axes == 1)
                if is_weight and kind[0] in "IUB" and not kind.startswith("BF"):
                    raise RefusalError(
                        f"The weights {key} of {name} are stored as {kind}, which holds whole numbers only: give the "
                        "weights as fractions (F32, F16 or BF16), as they were before they were converted."
                    )


# Settings in a config.json that no model can have, named before transformers stumbles over them.

# Widths and numbers of heads, in the spellings of all families: a model with none of them computes nothing.
_SIZE = re.compile(r"hidden_size|d_model|n_embd|head_dim|d_kv|(num_|n_)?(attention_|key_value_)?heads?|dim|embed_dim")
_LAYERS = re.compile(r"(num_|n_)(hidden_)?layers?")
_PRECISIONS = ("dtype", "torch_dtype")


def refuse_impossible_settings(config: Mapping[str, Any], name: str) -> None:
    """Refuse sizes below 1, and dtypes that torch does not have."""
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
    """Drop the packing if only the architecture is needed; else refuse one without a method."""
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
    """Yield every setting with its path, in nested configurations (`text_config`) too."""
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
    import torch

    return isinstance(value, str) and isinstance(getattr(torch, value.removeprefix("torch."), None), torch.dtype)
