"""What leaf rooms hold, by their files alone: nothing in them is imported, so that help and lists cost no time."""

from __future__ import annotations

import importlib
import pkgutil


def names(room: str) -> tuple[str, ...]:
    """The leaf files of a room such as `attnscope.measures`, which are its catalog."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(importlib.import_module(room).__path__)))
