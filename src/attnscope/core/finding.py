"""A finding: one plain sentence about one place in a model, with its number, threshold and source."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

Severity = Literal["info", "warning", "critical"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)


@dataclass(frozen=True)
class Finding:
    kind: str
    severity: Severity
    stack: str
    layers: tuple[int, ...]
    heads: tuple[tuple[int, int], ...]
    sentence: str
    value: float
    threshold: float
    threshold_name: str
    citation: str
    advice: str
    details: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def at_least(self, severity: Severity) -> bool:
        return SEVERITIES.index(self.severity) >= SEVERITIES.index(severity)
