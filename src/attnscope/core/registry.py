"""Finding leaf files: a room's registry is its directory listing, so adding a file is the whole registration."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from functools import cache

from attnscope.core.errors import RefusalError, nearest
from attnscope.core.measure import Measure

MEASURES_ROOM = "attnscope.measures"
SETS = ("default", "deep", "all")


@cache
def measures() -> dict[str, Measure]:
    """Every measure, by name. Imports the leaf files, and so torch, on first use."""
    room = importlib.import_module(MEASURES_ROOM)
    found: dict[str, Measure] = {}
    for leaf in sorted(m.name for m in pkgutil.iter_modules(room.__path__)):
        thing = getattr(importlib.import_module(f"{MEASURES_ROOM}.{leaf}"), leaf, None)
        if not isinstance(thing, Measure):
            raise TypeError(f"{MEASURES_ROOM}.{leaf} must define a measure called {leaf}")
        found[leaf] = thing
    return found


def choose(words: Iterable[str]) -> tuple[Measure, ...]:
    """The measures that a list of names and set names (`default`, `deep`, `all`) stands for, in catalog order."""
    known = measures()
    chosen: set[str] = set()
    for word in words:
        if word in SETS:
            chosen |= {n for n, m in known.items() if word in (m.card.group, "all")}
        elif word in known:
            chosen.add(word)
        else:
            raise RefusalError(f"There is no measure or set called '{word}'.{nearest(word, [*known, *SETS])}")
    if not chosen:
        raise RefusalError("No measure was chosen: name at least one, or a set (default, deep, all).")
    return tuple(m for n, m in known.items() if n in chosen)
