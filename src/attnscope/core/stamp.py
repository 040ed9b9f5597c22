"""When and with what numbers were made: the last lines of every provenance."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version

import attnscope

_LIBRARIES = ("torch", "transformers", "numpy")  # those whose versions can change numbers


@dataclass(frozen=True)
class Stamp:
    """Versions of the libraries that computed, of attnscope, and the time (UTC, to the second)."""

    versions: dict[str, str]
    attnscope: str
    created: str

    @classmethod
    def now(cls) -> Stamp:
        return cls(
            versions={name: version(name) for name in _LIBRARIES},
            attnscope=attnscope.__version__,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def to_json(self) -> dict[str, str | dict[str, str]]:
        return {"versions": dict(self.versions), "attnscope": self.attnscope, "created": self.created}
