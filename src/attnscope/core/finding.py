"""A finding: one plain sentence about one place in a model, with its number, threshold and source.

    @finding(order=60, reads=("sink_mass",), summary="Heads in which ...", citation="arXiv:2410.10781")
    def sink(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:

A kind of finding is a function that reads a survey and yields findings, one for each stack and site. `TABLE` says which
remedies answer which kind (`attnscope variants --remedies` prints it): the name of a variant, `prune`, which takes
heads out, or `bos`, which starts sequences with the BOS token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

from attnscope.core.card import leaf_decorator, names, undefined
from attnscope.core.errors import RefusalError, nearest

Severity = Literal["note", "warning", "critical"]
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
    """A registered kind of finding; its name is the `kind` of the findings it yields.

    `order` sorts findings of one severity. A measure that no kind `reads` is reported by the alarm on its own card. A
    `neutral` kind says what heads do: more of them is a change, and not worse.
    """

    name: str
    order: int
    reads: tuple[str, ...]
    summary: str
    citation: str
    neutral: bool = False
    function: Callable[[Any, Any], Iterator[Finding]] = undefined

    def __call__(self, survey: Any, thresholds: Any) -> Iterator[Finding]:
        return self.function(survey, thresholds)


def _register(kind: FindingKind, function: Callable[[Any, Any], Iterator[Finding]]) -> FindingKind:
    return replace(kind, function=function)


finding = leaf_decorator(FindingKind, _register)


AUTO = "auto"
PRUNE = "prune"
BOS = "bos"


@dataclass(frozen=True)
class Prescription:
    """The remedies for a kind of finding, the first to try first."""

    finding: str
    remedies: tuple[str, ...]
    why: str


TABLE: tuple[Prescription, ...] = (
    Prescription(
        "missing_bos",
        (BOS,),
        "The model was trained with BOS in front: give it back before anything is changed.",
    ),
    Prescription(
        "entropy_collapse",
        ("sigma_reparam", "qk_clip"),
        "One-hot attention comes from large logits: hold the norms of the projections, or the largest logit.",
    ),
    Prescription(
        "massive_activation",
        ("sandwich_norm", "qk_norm"),
        "One entry of the stream grows because nothing limits what a block adds to it: norm what blocks write.",
    ),
    Prescription(
        "past_float16",
        ("sandwich_norm", "qk_norm"),
        "Entries past float16 grow because nothing limits what a block adds: norm what blocks write.",
    ),
    Prescription(
        "sink",
        ("gated_output", "learned_sink", "softmax_plus_one"),
        "Heads rest on the first token because softmax must put its weight somewhere: give them another way to rest.",
    ),
    Prescription(
        "collapse",
        ("fusion", "minus_uniform"),
        "Tokens become alike because every block averages: bring earlier blocks back, or take the average out.",
    ),
    Prescription(
        "smoothing",
        ("fusion", "minus_uniform"),
        "Tokens point the same way because every block averages: bring earlier blocks back, or take the average out.",
    ),
    Prescription(
        "uniform_heads",
        ("temperature", PRUNE),
        "A head that looks everywhere chooses nothing: sharpen it, or take it out.",
    ),
    Prescription(
        "duplicate_heads",
        (PRUNE,),
        "Of two heads with one pattern one may do: take heads out by what they are worth, and see what it costs.",
    ),
)


def candidates(found: Sequence[Finding]) -> list[tuple[Prescription, str]]:
    """Return (row, remedy) for every remedy of the findings that were made, the most severe finding first."""
    severity: dict[str, int] = {}
    for finding in found:
        severity[finding.kind] = max(severity.get(finding.kind, 0), SEVERITIES.index(finding.severity))
    rows = sorted((row for row in TABLE if row.finding in severity), key=lambda row: -severity[row.finding])
    return [(row, remedy) for row in rows for remedy in row.remedies]


def answered_by(remedy: str) -> tuple[str, ...]:
    """Return the kinds of findings that a remedy is for."""
    return tuple(row.finding for row in TABLE if remedy in row.remedies)


def refuse_unknown_remedy(name: str) -> None:
    """Raise `RefusalError` for an unknown name, before anything is loaded."""
    known = (AUTO, PRUNE, BOS, *names("attnscope.variants"))
    if name not in known:
        raise RefusalError(f"There is no remedy called '{name}'.{nearest(name, known)}")
