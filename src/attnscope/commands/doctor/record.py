"""A checkup: is this installation able to work? What `attnscope doctor` finds, as plain values."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from attnscope.core.errors import INSTALL

State = Literal["well", "missing", "ill"]


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. `missing` is an extra that nobody needs unless they ask for it, or what cannot be
    looked at without it; `ill` is broken."""

    group: str
    name: str
    state: State
    found: str
    advice: str = ""


@dataclass(frozen=True)
class Checkup:
    checks: tuple[Check, ...]

    @property
    def well(self) -> bool:
        return all(check.state != "ill" for check in self.checks)

    @property
    def groups(self) -> dict[str, tuple[Check, ...]]:
        """In the order in which they were looked at."""
        names = dict.fromkeys(check.group for check in self.checks)
        return {name: tuple(check for check in self.checks if check.group == name) for name in names}

    def sentences(self) -> tuple[str, ...]:
        """What is wrong and what to do, or that nothing is."""
        wrong = tuple(f"{c.name}: {c.found}. {c.advice}".strip() for c in self.checks if c.state == "ill")
        if not wrong and any(check.group == "scan" and check.state == "missing" for check in self.checks):
            return (f"Records can be read, drawn, compared and exported here. To run models: {INSTALL}",)
        return wrong or ("Everything that attnscope needs works here.",)

    def to_json(self) -> dict[str, Any]:
        return {"well": self.well, "checks": [asdict(check) for check in self.checks]}
