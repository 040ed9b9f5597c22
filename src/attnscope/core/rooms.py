"""What leaf rooms hold, by their files alone: nothing in them is imported, so that help and lists cost no time."""

from __future__ import annotations

import hashlib
import importlib
import pkgutil
from importlib.util import find_spec
from pathlib import Path


def names(room: str) -> tuple[str, ...]:
    """The leaf files of a room such as `attnscope.measures`, which are its catalog."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(importlib.import_module(room).__path__)))


def digest(room: str, name: str) -> str | None:
    """Of the file that defines a leaf, so that what was written down about it can be told to be old; None where it
    cannot be read."""
    spec = find_spec(f"{room}.{name}")
    try:
        return hashlib.sha256(Path(str(spec.origin)).read_bytes()).hexdigest() if spec else None
    except OSError:
        return None
