"""A finding: one plain sentence about one place in a model, with its number, threshold and source.

    @finding(order=60, reads=("sink_mass",), summary="Heads in which ...", citation="arXiv:2410.10781",
             severity="to_know if most heads sink, because ...; else note")
    def sink(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:

A kind of finding is a function that reads a survey and yields findings, one for each stack and site. `TABLE` lists the
remedies for each kind (`attnscope variants --remedies` prints it). A remedy is the name of a variant, `prune`, which
removes heads, or `bos`, which starts sequences with the BOS token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

from attnscope.core.card import leaf_decorator, names, undefined
from attnscope.core.errors import RefusalError, nearest

Severity = Literal["note", "to_know", "wrong"]
"""How much a finding matters.

    note     describes what heads do; nothing follows from it
    to_know  is normal in healthy models, but matters when the model is quantised, served, pruned or trained further
    wrong    has a consequence (loss, overflow, a dead part), or lies outside what healthy real models show
"""
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
SEVERITY_WORDS: dict[Severity, str] = {"note": "note", "to_know": "to know", "wrong": "wrong"}
LEVELS: dict[Severity, Literal["note", "critical"]] = {"note": "note", "to_know": "note", "wrong": "critical"}
"""The colour of each severity on pages (see `reports.words.Level`)."""


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

    @property
    def level(self) -> Literal["note", "critical"]:
        """The colour of this finding on pages."""
        return LEVELS[self.severity]

    @property
    def severity_words(self) -> str:
        return SEVERITY_WORDS[self.severity]

    def at_least(self, severity: Severity) -> bool:
        return SEVERITIES.index(self.severity) >= SEVERITIES.index(severity)


@dataclass(frozen=True)
class FindingKind:
    """A registered kind of finding; its name is the `kind` of the findings it yields.

    `order` sorts findings of one severity. A measure that no kind `reads` is reported by the alarm on its own card. A
    `neutral` kind only describes what heads do: if it yields more findings than before, that is a change, not a
    regression. `severity` begins with a severity that its findings can have, and says which others they can have and
    why.
    """

    name: str
    order: int
    reads: tuple[str, ...]
    summary: str
    citation: str
    severity: str
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
    """The remedies for a kind of finding, in the order in which to try them."""

    finding: str
    remedies: tuple[str, ...]
    why: str


TABLE: tuple[Prescription, ...] = (
    Prescription(
        "missing_bos",
        (BOS,),
        "The model was trained with BOS in front: add BOS before you change anything else.",
    ),
    Prescription(
        "entropy_collapse",
        ("sigma_reparam", "qk_clip"),
        "One-hot attention comes from large logits: bound the norms of the projections, or the largest logit.",
    ),
    Prescription(
        "massive_activation",
        ("sandwich_norm", "qk_norm"),
        "One entry of the stream grows because nothing limits what a block adds to it: normalise what each block adds.",
    ),
    Prescription(
        "past_float16",
        ("sandwich_norm", "qk_norm"),
        "Activations overflow float16 because nothing limits what a block adds: normalise what each block adds.",
    ),
    Prescription(
        "sink",
        ("gated_output", "learned_sink", "softmax_plus_one"),
        "Heads attend to the first token because softmax must put its weight somewhere: let them attend to nothing.",
    ),
    Prescription(
        "collapse",
        ("fusion", "minus_uniform"),
        "Tokens become alike because every block averages: add back the output of earlier blocks, or subtract the "
        "average.",
    ),
    Prescription(
        "tokens_became_one",
        ("fusion", "minus_uniform"),
        "Tokens become equal because every block averages and nothing keeps them apart: add back the output of earlier "
        "blocks, or subtract the average.",
    ),
    Prescription(
        "smoothing",
        ("fusion", "minus_uniform"),
        "Tokens point the same way because every block averages: add back earlier blocks, or subtract the average.",
    ),
    Prescription(
        "uniform_heads",
        ("temperature", PRUNE),
        "A head that attends to all tokens alike selects nothing: sharpen it, or remove it.",
    ),
    Prescription(
        "duplicate_heads",
        (PRUNE,),
        "Of two heads with the same pattern, one may suffice: remove the heads of least value, and measure the cost.",
    ),
)


def candidates(found: Sequence[Finding]) -> list[tuple[Prescription, str]]:
    """Return (prescription, remedy) for every remedy of these findings, the most severe finding first."""
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
