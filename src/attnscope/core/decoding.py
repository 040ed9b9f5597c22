"""Typed values to JSON and back. A field of another type, a missing one and an unknown one are refused by name.

Numbers: JSON has neither NaN nor infinities, so NaN travels as null and infinities as the texts "inf" and "-inf"; where
a number belongs all three are read back as what they were, and nothing else is. Texts are never taken for numbers,
numbers never for truth values, and a text is no list of letters.
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

# The plain JSON form of things: what every file and every `--json` is made of.


def plain(thing: Any) -> Any:
    """The JSON form of a thing: tuples become lists, numpy scalars numbers, NaN and infinity None, others text."""
    if isinstance(thing, Mapping):
        return {str(k): plain(v) for k, v in thing.items()}
    if isinstance(thing, np.generic | np.ndarray):
        return plain(thing.tolist())
    if isinstance(thing, list | tuple):
        return [plain(v) for v in thing]
    if isinstance(thing, set | frozenset):
        return sorted((plain(v) for v in thing), key=lambda one: json.dumps(one, sort_keys=True))
    if isinstance(thing, float):
        return thing if math.isfinite(thing) else None
    return thing if thing is None or isinstance(thing, str | int) else str(thing)


_INFINITE = MappingProxyType({"inf": math.inf, "-inf": -math.inf})
_LARGEST = 2**63

Count = NewType("Count", int)
"""How many, of any size that a float can hold: thirty layers of nine heads have 1e30 paths. Other whole numbers in
files are below 2^63."""


class FieldError(ValueError):
    """What is wrong with which field: `curves['san'].mean[3]: a number is needed, not text`."""


def encode(thing: Any) -> Any:
    """The JSON form of a typed value."""
    if is_dataclass(thing) and not isinstance(thing, type):
        return {one.name: encode(getattr(thing, one.name)) for one in fields(thing)}
    if isinstance(thing, Mapping):
        return {str(name): encode(value) for name, value in thing.items()}
    if isinstance(thing, np.generic | np.ndarray):
        return encode(thing.tolist())
    if isinstance(thing, list | tuple):
        return [encode(one) for one in thing]
    if isinstance(thing, float) and not math.isfinite(thing):
        return None if math.isnan(thing) else str(thing)
    return thing


def decode(kind: Any, data: Any) -> Any:
    """The value of type `kind` that parsed JSON stands for, or a `FieldError` that names the first bad field."""
    try:
        return _converter().structure(data, kind)
    except Exception as error:  # cattrs wraps what its hooks raise in groups of its own; all of it is about the data
        raise FieldError(_first(error, "")) from error


@cache
def _converter() -> cattrs.Converter:
    made = cattrs.Converter(forbid_extra_keys=True)
    for kind, hook in ((float, _float), (int, _int), (Count, _count), (str, _str), (bool, _bool)):
        made.register_structure_hook(kind, hook)
    made.register_structure_hook_func(lambda kind: kind == float | int | str, _place)
    made.register_structure_hook_factory(_is_sequence, _sequence_hook)
    made.register_structure_hook_factory(_is_mapping, _mapping_hook)
    return made


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


def _place(value: Any, _: Any) -> float | int | str:
    """Where something stands: a number on an axis, whole or not, or a name."""
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
            _at(f"[{n}]", converter, one, kind) for n, (one, kind) in enumerate(zip(value, kinds, strict=True))
        )

    return structure


def _is_mapping(kind: Any) -> bool:
    return get_origin(kind) in (dict, Mapping) or kind is dict


def _mapping_hook(kind: Any, converter: cattrs.Converter) -> Callable[[Any, Any], Any]:
    inner = get_args(kind)[1] if get_args(kind) else Any

    def structure(value: Any, _: Any) -> Any:
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise FieldError(f"an object with named fields is needed, not {_named(value)}")
        return {name: _at(f"['{name}']", converter, one, inner) for name, one in value.items()}

    return structure


def _at(place: str, converter: cattrs.Converter, value: Any, kind: Any) -> Any:
    if kind is Any:
        return value
    try:
        return converter.structure(value, kind)
    except Exception as error:
        raise FieldError(_first(error, place)) from error


def _first(error: BaseException, place: str) -> str:
    """The first thing wrong, with the way to it. Groups of cattrs know the field; our own errors know the rest."""
    while isinstance(error, ClassValidationError | IterableValidationError):
        inner = error.exceptions[0]
        note = next((note for note in getattr(inner, "__notes__", []) if hasattr(note, "name")), None)
        place += f".{note.name}" if note is not None and hasattr(note, "name") else ""
        error = inner
    text = str(error)
    if isinstance(error, AttributeError | TypeError):  # a list or a number where fields were looked for
        text = "an object with named fields is needed"
    if isinstance(error, KeyError):
        return f"{place or 'the record'}: missing".lstrip(".")
    if "extra fields" in text.lower():
        text = text.replace("Extra fields in constructor for", "unknown fields in")
    separator = "" if text.startswith(("[", ".")) else ": " if place else ""
    return f"{place}{separator}{text}".lstrip(".")


def _named(value: Any) -> str:
    names = {type(None): "null", bool: "true or false", str: "text", dict: "an object", list: "a list"}
    return names.get(type(value), f"{value}"[:40])
