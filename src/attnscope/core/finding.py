"""A finding: one plain sentence about one place in a model, with its number, threshold and source.

    @finding(order=60, reads=("sink_mass",), summary="Heads in which ...", citation="arXiv:2410.10781")
    def sink(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:

A kind of finding is a function that reads a survey and yields findings, one for each stack and site.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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

    def __str__(self) -> str:
        return self.sentence

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def at_least(self, severity: Severity) -> bool:
        return SEVERITIES.index(self.severity) >= SEVERITIES.index(severity)


@dataclass(frozen=True)
class FindingKind:
    """A registered kind of finding; its name is the `kind` of what it yields.

    `order` is its place among findings of one severity. The measures in `reads` are explained by it: where no kind
    reads a measure, the alarm on the measure's own card speaks. A `neutral` kind says what heads do, which is neither
    good nor bad: more of them is a change, and not worse.
    """

    name: str
    order: int
    reads: tuple[str, ...]
    summary: str
    citation: str
    function: Callable[[Any, Any], Iterator[Finding]]
    neutral: bool = False

    def __call__(self, survey: Any, thresholds: Any) -> Iterator[Finding]:
        return self.function(survey, thresholds)


def finding(
    *, order: int, reads: tuple[str, ...], summary: str, citation: str, neutral: bool = False
) -> Callable[[Callable[[Any, Any], Iterator[Finding]]], FindingKind]:
    """Turn a function into a kind of finding named like the function, which is named like its file."""

    def register(function: Callable[[Any, Any], Iterator[Finding]]) -> FindingKind:
        return FindingKind(function.__name__, order, reads, summary, citation, function, neutral)

    return register
