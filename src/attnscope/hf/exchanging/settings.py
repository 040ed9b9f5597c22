"""Settings of a variant, sorted: those its start takes, and those its function takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

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
    start = {name: one for name, one in given.items() if name in begins}
    return start, {name: one for name, one in given.items() if name in takes or name not in begins}


def filled_from(variant: Variant, size: Size) -> dict[str, Any]:
    """Settings of the function that are called like a field of `Size`: the place says them."""
    named = inspect.signature(variant.function).parameters
    takes = variant.card.takes
    return {name: getattr(size, name) for name in named if name in _OF_SIZE and name not in takes}


def takes_seed(variant: Variant) -> bool:
    return "seed" in _keywords(variant.start)


def _keywords(function: Callable[..., Any]) -> set[str]:
    return {name for name, one in inspect.signature(function).parameters.items() if one.kind is one.KEYWORD_ONLY}
