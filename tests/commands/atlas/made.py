"""An atlas built by hand: decoders whose sink masses are known."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from attnscope.commands.atlas.record import Atlas, Entry, EntryStack, Grid, StackKind

MEASURE = "sink_mass"


def entry(
    name: str, values: Sequence[float], *, parameters: int = 1_000_000, kind: StackKind = "decoder", inside: float = 0.9
) -> Entry:
    stack = EntryStack("stack", kind, layers_of(name), len(values), (Grid(MEASURE, "value", "self", (tuple(values),)),))
    return Entry(name, f"family of {name}", "text", "MIT", "a==1", "english", name, parameters, (stack,), inside=inside)


def layers_of(name: str) -> int:
    """Return a number of blocks that belongs to a name, so that models of other names have other shapes."""
    return 1 + crc32(name.encode()) % 100_000


def atlas(*entries: Entry) -> Atlas:
    return Atlas(entries, {"samples": 32}, "0.0.0")
