"""Convert typed values to JSON and back. A wrong type, a missing and an unknown field raise `FieldError` by name.

JSON has neither NaN nor infinities, so NaN is written as null and infinities as "inf" and "-inf"; all three are read
back where a number is expected. Nothing else is converted: not text to numbers, numbers to booleans, or text to lists.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, NewType, get_args, get_origin

import cattrs
import numpy as np
from cattrs.errors import ClassValidationError, IterableValidationError


def plain(value: Any) -> Any:
    """Return any value as JSON: tuples become lists, numpy scalars numbers, NaN and infinity None, others text."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, np.generic | np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, set | frozenset):
        return sorted((plain(v) for v in value), key=lambda entry: json.dumps(entry, sort_keys=True))
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)


_INFINITE = MappingProxyType({"inf": math.inf, "-inf": -math.inf})
_LARGEST = 2**63

Count = NewType("Count", int)
"""A count of any size that a float can hold: thirty blocks of nine heads have 1e30 paths. Other integers in files are
below 2^63."""


class FieldError(ValueError):
    """Names the field and the problem: `curves['san'].mean[3]: a number is needed, not text`."""


def encode(value: Any) -> Any:
    """Return a typed value as JSON that `decode` reads."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): encode(entry) for name, entry in value.items()}
    if isinstance(value, np.generic | np.ndarray):
        return encode(value.tolist())
    if isinstance(value, list | tuple):
        return [encode(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def decode(kind: Any, data: Any) -> Any:
    """Return parsed JSON as a value of type `kind`, or raise `FieldError` with the first bad field."""
    try:
        return _converter().structure(data, kind)
    except Exception as error:  # cattrs wraps errors of its hooks in its own groups
        raise FieldError(_first(error, "")) from error


@cache
def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(forbid_extra_keys=True)
    for kind, hook in ((float, _float), (int, _int), (Count, _count), (str, _str), (bool, _bool)):
        converter.register_structure_hook(kind, hook)
    converter.register_structure_hook_func(lambda kind: kind == float | int | str, _axis_position)
    converter.register_structure_hook_factory(_is_sequence, _sequence_hook)
    converter.register_structure_hook_factory(_is_mapping, _mapping_hook)
    return converter


def _float(value: Any, _: Any) -> float:
    if value is None:
        return math.nan
    if isinstance(value, str) and value in _INFINITE:
        return _INFINITE[value]
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e400 < value < 1e400:
        raise FieldError(f"a number is needed, not {_named(value)}")
    return float(value)


def _int(value: Any, _: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= _LARGEST:
        raise FieldError(f"a whole number is needed, not {_named(value)}")
    return value


def _count(value: Any, _: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 10**308:
        raise FieldError(f"a count is needed, not {_named(value)}")
    return value


def _str(value: Any, _: Any) -> str:
    if not isinstance(value, str):
        raise FieldError(f"text is needed, not {_named(value)}")
    return value


def _axis_position(value: Any, _: Any) -> float | int | str:
    """A position on an axis: a number or a name."""
    if isinstance(value, str) and value not in _INFINITE:
        return value
    return value if isinstance(value, int) and not isinstance(value, bool) else _float(value, float)


def _bool(value: Any, _: Any) -> bool:
    if not isinstance(value, bool):
        raise FieldError(f"true or false is needed, not {_named(value)}")
    return value


def _is_sequence(kind: Any) -> bool:
    return get_origin(kind) in (tuple, list)


def _sequence_hook(kind: Any, converter: cattrs.Converter) -> Callable[[Any, Any], Any]:
    origin, inner = get_origin(kind), get_args(kind)
    fixed = origin is tuple and inner[-1:] != (...,)

    def structure(value: Any, _: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise FieldError(f"a list is needed, not {_named(value)}")
        if fixed and len(value) != len(inner):
            raise FieldError(f"a list of {len(inner)} is needed, not of {len(value)}")
        kinds = inner if fixed else [inner[0]] * len(value)
        return origin(
            _at(f"[{n}]", converter, entry, kind) for n, (entry, kind) in enumerate(zip(value, kinds, strict=True))
        )

    return structure


def _is_mapping(kind: Any) -> bool:
    return get_origin(kind) in (dict, Mapping) or kind is dict


def _mapping_hook(kind: Any, converter: cattrs.Converter) -> Callable[[Any, Any], Any]:
    inner = get_args(kind)[1] if get_args(kind) else Any

    def structure(value: Any, _: Any) -> Any:
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise FieldError(f"an object with named fields is needed, not {_named(value)}")
        return {name: _at(f"['{name}']", converter, entry, inner) for name, entry in value.items()}

    return structure


def _at(path: str, converter: cattrs.Converter, value: Any, kind: Any) -> Any:
    if kind is Any:
        return value
    try:
        return converter.structure(value, kind)
    except Exception as error:
        raise FieldError(_first(error, path)) from error


def _first(error: BaseException, path: str) -> str:
    """Return the first problem and the path to it. Groups of cattrs know the field, our own errors the rest."""
    while isinstance(error, ClassValidationError | IterableValidationError):
        inner = error.exceptions[0]
        note = next((note for note in getattr(inner, "__notes__", []) if hasattr(note, "name")), None)
        path += f".{note.name}" if note is not None and hasattr(note, "name") else ""
        error = inner
    text = str(error)
    if isinstance(error, AttributeError | TypeError):  # a list or a number instead of an object
        text = "an object with named fields is needed"
    if isinstance(error, KeyError):
        return f"{path or 'the record'}: missing".lstrip(".")
    if "extra fields" in text.lower():
        text = text.replace("Extra fields in constructor for", "unknown fields in")
    separator = "" if text.startswith(("[", ".")) else ": " if path else ""
    return f"{path}{separator}{text}".lstrip(".")


def _named(value: Any) -> str:
    names = {type(None): "null", bool: "true or false", str: "text", dict: "an object", list: "a list"}
    return names.get(type(value), f"{value}"[:40])
