"""What was put into a model, written down: read from a folder before torch is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PREFIX = "attnscope_"  # of the name under which a variant hangs in a model


@dataclass(frozen=True)
class Recipe:
    """What was put into a model, and where: enough to do the same again."""

    variant: str
    layers: tuple[int, ...]
    heads: tuple[int, ...] | None = None
    stack: str = ""
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "variant": self.variant,
            "layers": list(self.layers),
            "heads": None if self.heads is None else list(self.heads),
            "stack": self.stack,
            "seed": self.seed,
            "settings": {name: _plain(value) for name, value in self.settings.items()},
        }


def _plain(value: Any) -> Any:
    """As JSON has it."""
    if callable(getattr(value, "tolist", None)):  # a tensor, asked without importing torch
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value
