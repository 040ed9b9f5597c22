"""An atlas built by hand: decoders of one block and four heads, whose sink masses are known."""

from __future__ import annotations

from collections.abc import Sequence

from attnscope.commands.atlas.record import Atlas, Entry, EntryStack, Grid, StackKind

MEASURE = "sink_mass"


def entry(
    name: str, values: Sequence[float], *, parameters: int = 1_000_000, kind: StackKind = "decoder", inside: float = 0.9
) -> Entry:
    stack = EntryStack("stack", kind, 1, len(values), (Grid(MEASURE, "value", "self", (tuple(values),)),))
    return Entry(name, f"family of {name}", "text", "MIT", "a==1", "english", name, parameters, (stack,), inside=inside)


def atlas(*entries: Entry) -> Atlas:
    return Atlas(entries, {"samples": 32}, "0.0.0")
