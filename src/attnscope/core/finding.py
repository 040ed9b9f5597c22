"""A finding: one plain sentence about one place in a model, with its number, threshold and source.

    @finding(order=60, reads=("sink_mass",), summary="Heads in which ...", citation="arXiv:2410.10781")
    def sink(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:

A kind of finding is a function that reads a survey and yields findings, one for each stack and site.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from attnscope.core.card import names
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


# From a finding to a remedy: which published change answers which finding, and why. One table, visible to everyone.
#
#     attnscope variants --remedies        prints it
#
# A remedy is the name of a variant, or one of two things that are done to a model without one: `prune` takes heads out,
# `bos` lets sequences begin with the BOS token.

AUTO = "auto"
PRUNE = "prune"
BOS = "bos"


@dataclass(frozen=True)
class Prescription:
    """What answers a kind of finding: `remedies` from the first to try to the last."""

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
    """Rows whose finding was made, each with its remedies one by one: the most severe finding first."""
    severity: dict[str, int] = {}
    for one in found:
        severity[one.kind] = max(severity.get(one.kind, 0), SEVERITIES.index(one.severity))
    rows = sorted((row for row in TABLE if row.finding in severity), key=lambda row: -severity[row.finding])
    return [(row, remedy) for row in rows for remedy in row.remedies]


def answered_by(remedy: str) -> tuple[str, ...]:
    """The kinds of findings that a remedy is meant for."""
    return tuple(row.finding for row in TABLE if remedy in row.remedies)


def refuse_unknown_remedy(name: str) -> None:
    """By names alone, before anything is loaded."""
    known = (AUTO, PRUNE, BOS, *names("attnscope.variants"))
    if name not in known:
        raise RefusalError(f"There is no remedy called '{name}'.{nearest(name, known)}")
