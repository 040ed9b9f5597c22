"""Convert typed values to JSON and back. A wrong, missing or unknown field raises a `FieldError` that names it.

JSON has neither NaN nor infinities, so NaN is written as null and infinities as "inf" and "-inf"; all three are read
back where a number is expected. Nothing else is converted: text never becomes a number, a number never a boolean, and
text never a list.

The ranges of numbers are part of their types (`core.ranges`), and a number outside raises `FieldError` too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import cattrs
import numpy as np
from cattrs import override
from cattrs.errors import ClassValidationError, IterableValidationError
from cattrs.gen import make_dict_structure_fn

from attnscope.core.ranges import COUNTED, FACTS, HUGE, INFINITE, MOST_COUNTED, NAN, NEEDED, RELATIONS, SEEDS, Within


def plain(value: Any) -> Any:
    """Return any value as JSON: tuples become lists, numpy scalars numbers, NaN and infinity None, the rest text."""
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
    for kind, hook in ((float, _float), (int, _int), (str, _str), (bool, _bool)):
        converter.register_structure_hook(kind, hook)
    converter.register_structure_hook_factory(lambda kind: isinstance(kind, type) and is_dataclass(kind), _object_hook)
    converter.register_structure_hook_factory(_is_annotated, _annotated_hook)
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


def _is_annotated(kind: Any) -> bool:
    return get_origin(kind) is Annotated


def _annotated_hook(kind: Any, converter: cattrs.Converter) -> Callable[[Any, Any], Any]:
    plain_kind, *marks = get_args(kind)
    within = next((mark for mark in marks if isinstance(mark, Within)), None)
    if within is not None:
        return lambda value, _: _in_range(value, plain_kind, within, NAN in marks, INFINITE in marks)

    def structure(value: Any, _: Any) -> Any:
        if FACTS in marks:
            check_facts(value, "")
        return converter.structure(value, plain_kind)

    return structure


def _in_range(value: Any, kind: type, within: Within, nan: bool, infinite: bool) -> float | int:
    if kind is int and (isinstance(value, bool) or not isinstance(value, int)):
        raise FieldError(f"a whole number is needed, not {_named(value)}")
    number: float = value if kind is int else _float(value, float)
    endless = number in (math.inf, -math.inf)
    if not ((nan and value is None) or (infinite and endless) or within.low <= number <= within.high):
        raise FieldError(f"{within.words} is needed, not {'infinity' if endless else _named(value)}")
    return number


def check_facts(value: Any, name: str) -> None:
    """Raise `FieldError` for a number that provenance cannot hold."""
    if isinstance(value, Mapping):
        for inner, entry in value.items():
            try:
                check_facts(entry, str(inner))
            except FieldError as error:
                raise FieldError(_first(error, f"['{inner}']")) from error
    elif isinstance(value, list | tuple):
        for entry in value:
            check_facts(entry, name)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if name in (*COUNTED, *SEEDS) and not isinstance(value, int):
            raise FieldError(f"a whole number is needed, not {_named(value)}")
        if name in COUNTED and not 0 <= value <= MOST_COUNTED:
            raise FieldError(f"a count is needed, not {_named(value)}")
        if name not in SEEDS and not 0 <= value <= HUGE:
            raise FieldError(f"a finite number of 0 or more is needed, not {_named(value)}")


def _typed_hook(hint: Any, converter: cattrs.Converter) -> Any:
    return override(struct_hook=lambda value, _: converter.structure(value, hint))


def _object_hook(kind: Any, converter: cattrs.Converter) -> Callable[[Any, Any], Any]:
    """Return the default hook of a dataclass, followed by the checks of fields against each other."""
    hints = get_type_hints(kind, include_extras=True)  # cattrs alone would drop the annotations
    hooks: dict[str, Any] = {
        name: _typed_hook(hints[name], converter) for name in (field.name for field in fields(kind))
    }
    structure = make_dict_structure_fn(kind, converter, _cattrs_forbid_extra_keys=True, **hooks)
    relations = [
        (field.name, mark)
        for field in fields(kind)
        if get_origin(hints[field.name]) is Annotated
        for mark in get_args(hints[field.name])[1:]
        if type(mark) in RELATIONS
    ]
    if not relations:
        return structure

    def checked(value: Any, _: Any) -> Any:
        read = structure(value, kind)
        for name, mark in relations:
            mine, other = getattr(read, name), getattr(read, mark.other)
            if mine is not None and other is not None and not RELATIONS[type(mark)](mine, other):
                raise FieldError(f".{name}: {NEEDED[type(mark)].format(mark.other)}")
        return read

    return checked


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
    """Return the first problem and the path of its field, from nested cattrs errors and our own `FieldError`."""
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
