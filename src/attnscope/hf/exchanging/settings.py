"""Settings of a variant, sorted: those its start takes, and those its function takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from attnscope.core.errors import RefusalError, nearest
from attnscope.core.variant import CALL, Size, Variant

_OF_SIZE = frozenset(one.name for one in fields(Size))


def sorted_settings(variant: Variant, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(for the start, for the function); a word that neither knows is refused."""
    card = variant.card
    begins, takes = _keywords(variant.start), _keywords(variant.function)
    own = {*CALL, *card.parameters, *card.drawn, "seed"}
    known = sorted((begins | takes) - own - _OF_SIZE)
    anything = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(variant.function).parameters.values())
    for name in given:
        if name not in known and (not anything or card.kind == "weights"):
            said = nearest(name, known) if known else " It has none."
            raise RefusalError(f"{card.name} has no setting '{name}'.{said}")
        _refuse_unfit(variant, name, given[name])
    start = {name: one for name, one in given.items() if name in begins}
    return start, {name: one for name, one in given.items() if name in takes or name not in begins}


def _refuse_unfit(variant: Variant, name: str, value: Any) -> None:
    """A word where a number stands, or a word that is none of those that are known."""
    for function in (variant.start, variant.function):
        one = inspect.signature(function).parameters.get(name)
        if one is None:
            continue
        hint = get_type_hints(inspect.unwrap(function)).get(name)
        if get_origin(hint) is Literal and value not in get_args(hint):
            raise RefusalError(f"'{value}' is no {name} of {variant.card.name}: choose {' or '.join(get_args(hint))}.")
        number = isinstance(one.default, int | float) and not isinstance(one.default, bool)
        if number and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise RefusalError(f"{name} of {variant.card.name} is a number ({one.default} if not said), not '{value}'.")


def filled_from(variant: Variant, size: Size) -> dict[str, Any]:
    """Settings of the function that are called like a field of `Size`: the place says them."""
    named = inspect.signature(variant.function).parameters
    takes = variant.card.takes
    return {name: getattr(size, name) for name in named if name in _OF_SIZE and name not in takes}


def takes_seed(variant: Variant) -> bool:
    return "seed" in _keywords(variant.start)


def _keywords(function: Callable[..., Any]) -> set[str]:
    return {name for name, one in inspect.signature(function).parameters.items() if one.kind is one.KEYWORD_ONLY}
