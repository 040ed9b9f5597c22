"""Checks and hashes of model files: GGUF headers, dtypes in safetensors, settings in config.json. Needs no torch."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import mmap
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from safetensors import safe_open

from attnscope.core.errors import RefusalError


@dataclasses.dataclass(frozen=True)
class Header:
    """The BOS fields of a GGUF file, which transformers drops. A field is None if the file does not have it."""

    adds_bos: bool | None = None
    bos: int | None = None


@contextmanager
def open_gguf(path: Path) -> Iterator[Header]:
    """Share one `gguf.GGUFReader(path)` inside the context, and refuse a truncated file.

    transformers parses the header, with its vocabulary, for the configuration, the weights and the tokenizer: three
    times would take longer than unpacking the weights.
    """
    with path.open("rb") as handle:
        if handle.read(4) != b"GGUF":
            raise RefusalError(f"{path} does not begin like a GGUF file: fetch it again.")
    if not all(map(find_spec, ("gguf", "accelerate"))):
        raise RefusalError(
            f"Reading {path.name} needs the packages gguf and accelerate: pip install 'attnscope[gguf]'."
        )
    _refuse_impossible_counts(path)
    import gguf

    reader_class = gguf.GGUFReader
    try:
        reader = reader_class(path)
    except Exception as error:  # a truncated file makes the reader raise many kinds of errors
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


_SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes per value, by its type
_STRING, _ARRAY, _DEEPEST = 8, 9, 8


def _refuse_impossible_counts(path: Path) -> None:
    """Refuse a GGUF header that counts more fields, items or tensors than the file has bytes.

    The library `gguf` trusts these counts and reads past the end of the file until memory is full.
    """
    try:
        with path.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as content:
            little = int.from_bytes(content[4:8], "little") & 0xFFFF
            _GgufScan(content, "<" if little else ">").header()
    except (struct.error, ValueError, OSError) as error:
        raise RefusalError(f"{path} is damaged or cut short ({error!s:.80}): fetch it again.") from error


class _GgufScan:
    """Steps through the header of a GGUF file, and raises an error if the header extends past the end of the file."""

    def __init__(self, content: mmap.mmap, order: str) -> None:
        self.content, self.at = content, 8
        self.long, self.short = struct.Struct(f"{order}Q"), struct.Struct(f"{order}I")

    def header(self) -> None:
        tensors, fields = self.number(), self.number()
        for _ in range(fields):
            self.skip(self.number())
            self.value(self.number(self.short), 0)
        for _ in range(tensors):
            self.skip(self.number())
            self.skip(8 * self.number(self.short) + 12)  # the tensor's shape, type and offset

    def number(self, kind: struct.Struct | None = None) -> int:
        kind = kind or self.long
        value: int = kind.unpack_from(self.content, self.at)[0]
        self.at += kind.size
        return value

    def skip(self, length: int) -> None:
        self.at += length
        if self.at > len(self.content):
            raise ValueError("its header leaves the file")

    def value(self, kind: int, depth: int) -> None:
        if kind in _SCALARS:
            self.skip(_SCALARS[kind])
        elif kind == _STRING:
            self.skip(self.number())
        elif kind != _ARRAY or depth > _DEEPEST:
            raise ValueError(f"its header has a value of type {kind}")
        else:
            item, count = self.number(self.short), self.number()
            if item in _SCALARS:
                self.skip(_SCALARS[item] * count)
            else:
                for _ in range(count):
                    self.value(item, depth + 1)


def _header(reader: Any) -> Header:
    """Return the BOS fields. A field of an unexpected type is ignored."""
    fields = (reader.get_field(f"tokenizer.ggml.{name}") for name in ("add_bos_token", "bos_token_id"))
    adds, bos = (None if field is None else field.contents() for field in fields)
    whole = isinstance(bos, int) and not isinstance(bos, bool)
    return Header(adds if isinstance(adds, bool) else None, bos if whole else None)


def refuse_whole_numbers(files: Iterable[Path], name: str) -> None:
    """Refuse integers or booleans as weights: transformers would silently cast them to floating point.

    Masks and counters that are stored with the weights (`attn.bias` of GPT-2, `position_ids`) may be integers. Only
    headers of the files are read.
    """
    for file in files:
        with safe_open(file, framework="pt") as stored:
            for key in stored.keys():  # noqa: SIM118 (not a mapping)
                tensor = stored.get_slice(key)
                kind, axes, last = str(tensor.get_dtype()), len(tensor.get_shape()), key.rsplit(".", 1)[-1]
                is_weight = last in ("weight", "gamma", "beta") or (last == "bias" and axes == 1)
                if is_weight and kind[0] in "IUB" and not kind.startswith("BF"):
                    raise RefusalError(
                        f"The weights {key} of {name} are stored as integers ({kind}): give the floating-point weights "
                        "(F32, F16 or BF16) from before they were converted."
                    )


# Settings for widths and numbers of heads, as the model families spell them. They must be positive.
_SIZE = re.compile(r"hidden_size|d_model|n_embd|head_dim|d_kv|(num_|n_)?(attention_|key_value_)?heads?|dim|embed_dim")
_LAYERS = re.compile(r"(num_|n_)(hidden_)?layers?")
_PRECISIONS = ("dtype", "torch_dtype")


def refuse_impossible_settings(config: Mapping[str, Any], name: str) -> None:
    """Refuse sizes below 1, and dtypes that torch does not have."""
    for place, key, value in _entries(config):
        if key in _PRECISIONS and not _is_precision(value):
            raise RefusalError(
                f"The configuration of {name} sets {place} to {value!r:.60}, which torch does not have: write a dtype "
                'that it has, such as "float32".'
            )
        if isinstance(value, bool) or not isinstance(value, int):
            continue
        if value < 1 and (_SIZE.fullmatch(key) or (_LAYERS.fullmatch(key) and place == key)):
            raise RefusalError(
                f"The configuration of {name} says {place} = {value}, which must be at least 1: correct it."
            )


def without_broken_packing(config: Mapping[str, Any], name: str, *, architecture_only: bool) -> dict[str, Any]:
    """Drop quantization_config if only the architecture is needed; otherwise refuse it if it has no method."""
    settings = dict(config)
    packing = settings.get("quantization_config")
    named = isinstance(packing, Mapping) and isinstance(packing.get("quant_method"), str)
    if packing is None or (architecture_only and isinstance(packing, Mapping)):
        settings.pop("quantization_config", None)
    elif not named:
        raise RefusalError(
            f"The quantization_config of {name} has no quant_method: remove the entry if the weights are plain "
            "numbers, or give the original weights."
        )
    return settings


def _entries(config: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yield path, key and value of every setting, including those of nested configurations (`text_config`)."""
    for key, value in config.items():
        place = f"{above}{key}"
        if isinstance(value, Mapping) and str(key).endswith("_config"):
            yield from _entries(value, f"{place}.")
        else:
            yield place, str(key), value


def _is_precision(value: Any) -> bool:
    if isinstance(value, Mapping):  # a dtype for each part of a model
        return all(map(_is_precision, value.values()))
    if value is None or value == "auto":
        return True
    import torch

    return isinstance(value, str) and isinstance(getattr(torch, value.removeprefix("torch."), None), torch.dtype)


# Settings that saving and loading change. The precision of a scan is recorded separately.
_BOOKKEEPING = frozenset({"name", "architectures", "dtype", "torch_dtype", "auto_map"})


def hash_of_files(files: Iterable[Path]) -> str:
    """Return the SHA-256 of one file, or of the names and hashes of several files in sorted order."""
    hashes = [(file.name, _hash_of_file(file)) for file in sorted(files)]
    if len(hashes) == 1:
        return hashes[0][1]
    return hash_of_json(hashes)


def hash_of_json(data: Mapping[str, Any] | list[Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True, default=str).encode()).hexdigest()


def described(config: Any) -> dict[str, Any]:
    """Return the settings of a configuration that affect computation; empty if it cannot be read."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type) and not hasattr(config, "to_dict"):
        return _computing(dataclasses.asdict(config))
    return _computing(config.to_dict()) if callable(getattr(config, "to_dict", None)) else {}


def _computing(settings: Mapping[Any, Any]) -> dict[str, Any]:
    return {
        str(name): _computing(value) if isinstance(value, Mapping) else value
        for name, value in settings.items()
        if not (str(name).startswith("_") or name in _BOOKKEEPING or "version" in str(name) or "path" in str(name))
    }


def _hash_of_file(file: Path) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
