"""A record of what was installed in a model. It can be read from a folder without importing torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

PREFIX = "attnscope_"  # begins the name of a variant's submodule


@dataclass(frozen=True)
class InstallRequest:
    """A request to install a variant. None means all blocks, all heads, or the only stack."""

    variant: str
    blocks: Iterable[int] | None = None
    heads: Iterable[int] | None = None
    stack: str | None = None
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe:
    """A description of an installed variant, sufficient to install it again."""

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
    if callable(getattr(value, "tolist", None)):  # a tensor, recognised without importing torch
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value
