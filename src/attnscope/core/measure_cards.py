"""What can be measured, without importing it: measures import torch, and a list of them should not.

`cards.json`, in the room, holds the card of every measure with the hash of the file that defines it; it is written by
`tools/measures_table.py` (`make tables`). A file that is new or has changed since is imported and asked itself, so the
list is right either way, and needs no torch where nothing has changed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from importlib.resources import files
from typing import Any

from attnscope.core.card import Alarm, Card
from attnscope.core.measure import Measure
from attnscope.core.rooms import digest, names

ROOM = "attnscope.measures"
FILE = "cards.json"
_WITHOUT_END = {"low": -math.inf, "high": math.inf}
"""Bounds that are none. JSON has no word for infinity, so the file leaves them out."""


def measure_cards() -> dict[str, Card]:
    """Every measure's card, by name."""
    written = _written()
    return {name: _card(name, written.get(name)) for name in names(ROOM)}


def cards_json(measures: Mapping[str, Measure]) -> bytes:
    """The file in the room."""
    data = {name: {"sha256": digest(ROOM, name), **_document(one.card)} for name, one in sorted(measures.items())}
    return (json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _card(name: str, written: Mapping[str, Any] | None) -> Card:
    if written is not None and written["sha256"] == digest(ROOM, name):
        known = {field.name: written.get(field.name, _WITHOUT_END.get(field.name)) for field in fields(Card)}
        alarm = None if known["alarm"] is None else Alarm(**known["alarm"])
        return Card(**{**known, "sites": tuple(known["sites"]), "parts": tuple(known["parts"]), "alarm": alarm})
    from attnscope.core.registry import measures

    return measures()[name].card


@cache
def _written() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(files(ROOM).joinpath(FILE).read_text("utf-8"))
    return found


def _document(card: Card) -> dict[str, Any]:
    return {name: said for name, said in card.to_json().items() if said != _WITHOUT_END.get(name, math.nan)}
