"""What can be exchanged, without importing it: the variants import torch, and a list of them should not.

`cards.json`, in the room, holds the card of every variant with the hash of the file that defines it; it is written by
`tools/variant_cards.py` (`make tables`). A file that is new or has changed since is imported and asked itself, so the
list is right either way, and quick where nothing has changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from importlib.resources import files
from typing import Any

from attnscope.core.rooms import digest, names
from attnscope.core.variant import Variant, VariantCard

ROOM = "attnscope.variants"
FILE = "cards.json"


def variant_cards() -> dict[str, VariantCard]:
    """Every variant's card, by name."""
    written = _written()
    return {name: _card(name, written.get(name)) for name in names(ROOM)}


def cards_json(variants: Mapping[str, Variant]) -> bytes:
    """The file in the room."""
    data = {name: {"sha256": digest(ROOM, name), **_document(one.card)} for name, one in sorted(variants.items())}
    return (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode()


def _card(name: str, written: Mapping[str, Any] | None) -> VariantCard:
    if written is not None and written["sha256"] == digest(ROOM, name):
        known = {field.name: written[field.name] for field in fields(VariantCard)}
        return VariantCard(**{**known, "takes": tuple(known["takes"])})
    from attnscope.core.registry import variants

    return variants()[name].card


@cache
def _written() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(files(ROOM).joinpath(FILE).read_text("utf-8"))
    return found


def _document(card: VariantCard) -> dict[str, Any]:
    said = card.to_json()
    return {field.name: said[field.name] for field in fields(VariantCard)}
