"""Convert a survey to a JSON document and back. A damaged document raises `FieldError` with the name of the field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attnscope.commands.scan.survey.cell import Cell, Key
from attnscope.commands.scan.survey.possible import Extent, check_cell, check_trial
from attnscope.commands.scan.survey.provenance import Excerpts, Sequences
from attnscope.commands.scan.survey.survey import Survey
from attnscope.commands.scan.survey.trial import Trial
from attnscope.core.card import Card
from attnscope.core.decoding import FieldError, check_facts, decode, encode, plain
from attnscope.core.ranges import Count

_DEEPEST = 10**5  # blocks; arrays are allocated for the largest block number in the file
_LONGEST_NUMBER = 18  # digits of the number of a sequence
_DAMAGED = (KeyError, TypeError, ValueError, AttributeError, OverflowError, AssertionError, IndexError)


def to_json(survey: Survey) -> dict[str, Any]:
    texts = {"excerpts": {str(sample): list(tokens) for sample, tokens in survey.excerpts.items()}}
    ids = {"sequences": {str(sample): encode(inputs) for sample, inputs in survey.sequences.items()}}
    return {
        "provenance": plain(survey.provenance),
        "cards": {name: encode(card) for name, card in sorted(survey.cards.items())},
        "cells": [{"key": list(key), **cell.to_json()} for key, cell in sorted(survey.cells.items())],
        **(texts if survey.excerpts else {}),
        **(ids if survey.sequences else {}),
        **({} if survey.trial is None else {"trial": encode(survey.trial)}),
    }


def from_json(data: Mapping[str, Any]) -> Survey:
    cards: dict[str, Card] = decode(dict[str, Card], _field(data, "cards", dict))
    for name, card in cards.items():
        if name != card.name or not card.parts:
            raise FieldError(f"cards['{name}'] is the card of something else")
    provenance = _field(data, "provenance", dict)
    refuse_other_types(provenance)
    extents = Extent.of_stacks(provenance)
    tokens = max((extent.tokens or 0 for extent in extents.values()), default=0)  # no sequence is longer
    cells = {}
    for number, entry in enumerate(_field(data, "cells", list)):
        try:
            key = key_of(entry["key"], cards)
            cells[key] = cell = Cell.from_json(entry)
            extents.get(key.stack, Extent()).check_place(key, math.prod(cell.shape))
            check_cell(key, cards[key.measure], cell, tokens)
        except _DAMAGED as error:
            raise FieldError(f"cells[{number}]: {error}") from error
    excerpts: Excerpts = _by_sample(data, "excerpts", tuple[str, ...])
    sequences: Sequences = _by_sample(data, "sequences", dict[str, tuple[Count, ...]])
    return Survey(provenance, cards, cells, excerpts, sequences, _trial(data.get("trial"), extents))


def _trial(data: Any, extents: Mapping[str, Extent]) -> Trial | None:
    if data is None:
        return None
    try:
        trial: Trial = decode(Trial, data)
        check_trial(trial, extents)
    except FieldError as error:
        raise FieldError(f"trial.{error}") from error
    return trial


def _by_sample(data: Mapping[str, Any], field: str, kind: Any) -> dict[int, Any]:
    decoded = decode(dict[str, kind], data.get(field, {}))
    for sample in decoded:
        if not sample.isdecimal() or len(sample) > _LONGEST_NUMBER:
            raise FieldError(f"{field}['{sample[:20]}'] is not the number of a sequence")
    return {int(sample): value for sample, value in decoded.items()}


def _field(data: Mapping[str, Any], name: str, kind: type) -> Any:
    if not isinstance(data.get(name), kind):
        raise FieldError(f"{name}: {'missing' if name not in data else 'of another type'}")
    return data[name]


def key_of(words: Any, cards: Mapping[str, Card]) -> Key:
    whole = isinstance(words, list) and len(words) == len(Key._fields)
    if not whole or not all(isinstance(name, str) for name in words[:4]) or type(words[4]) is not int:
        raise FieldError("its key must be measure, part, stack, site and layer")
    key = Key(*words)
    if key.layer not in range(_DEEPEST):
        raise FieldError(f"block {key.layer} is not a possible block number")
    if key.measure not in cards or key.part not in cards[key.measure].parts:
        raise FieldError(f"there is no card for {key.measure} {key.part}")
    if key.site not in cards[key.measure].sites:
        raise FieldError(f"{key.measure} is not taken at {key.site}")
    return key


@dataclass(frozen=True)
class _Stack:
    name: str
    layers: Count | None = None
    heads: Count | None = None
    causal: bool | None = None
    tokens: Count | None = None
    kinds: dict[str, str] | None = None


# Types of the provenance fields that pages, terminals and findings read. Other fields are shown unchanged.
_READ: Mapping[str, Mapping[str, Any]] = {
    "model": {"name": str, "class": str, "stacks": tuple[_Stack, ...]},
    "corpus": {"name": str, "sequences": Count, "tokens": Count, "files_read": Count, "files_skipped": Count},
}


def refuse_other_types(provenance: Mapping[str, Any]) -> None:
    """Check the types of provenance fields, so that a survey edited by hand cannot break its page."""
    for section, kinds in _READ.items():
        part = provenance.get(section, {})
        if not isinstance(part, Mapping):
            raise FieldError(f"provenance['{section}'] is not described by named fields")
        for name, kind in kinds.items():
            if part.get(name) is not None:
                try:
                    decode(kind, part[name])
                except FieldError as error:
                    raise FieldError(f"provenance['{section}']['{name}']: {error}") from error
    try:
        check_facts(provenance, "")
    except FieldError as error:
        raise FieldError(f"provenance{error}") from error
    if not isinstance(provenance.get("not_measured", {}), Mapping):
        raise FieldError("provenance['not_measured'] is not described by named fields")
