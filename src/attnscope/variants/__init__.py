"""One file per published attention; every file here is found and registered by its name.

The room is called like the command, whose Python twin is called: `attnscope.variants()` is the catalog also where some
file of the room was imported before, and the name stands for the room.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Room(ModuleType):
    def __call__(self, name: str | None = None) -> Any:
        from attnscope.core.registry import variant_catalog

        return variant_catalog(name)


sys.modules[__name__].__class__ = _Room
