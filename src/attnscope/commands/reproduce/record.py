"""The record of `reproduce` as plain data: the claims of a paper, their verdicts, and all numbers behind them.

    found.claims[0].verdict            computed from its rule and numbers on access, never stored here
    found.measured["sort_accuracy"]    one number for every seed
    found.save("results.json"); Reproduction.load("results.json"); Reproduction.load("attnscope-dong2021")

The file repeats verdicts, medians and counts for readers without this package. `load` computes them again and refuses a
file that contradicts its own rules and numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from attnscope.core.decoding import FieldError, decode, encode
from attnscope.core.experiment import VERDICTS, Bound, Claim, Figure, Number
from attnscope.core.ranges import Count, Size
from attnscope.reports.record import Record

if TYPE_CHECKING:
    import pandas

RESULTS = "results.json"
PAGE = "page.html"
CHARTS = "charts"


@dataclass(frozen=True, repr=False)
class Reproduction(Record):
    """One run of an experiment."""

    KIND: ClassVar[str] = "reproduction"
    COMMAND: ClassVar[str] = "reproduce PAPER"
    FILE: ClassVar[str] = "results.json"

    attnscope: str  # the version that ran it
    experiment: str
    title: str
    paper: str
    summary: str
    preset: str
    params: dict[str, Any]  # parameters of the preset; each experiment has its own names
    seeds: tuple[int, ...]
    seconds: float
    claims: tuple[Claim, ...]
    remarks: tuple[str, ...] = ()
    measured: dict[str, tuple[float, ...]] = field(default_factory=dict)
    records: tuple[dict[str, Any], ...] = ()  # all numbers from which `measured` was computed
    figures: tuple[Figure, ...] = ()
    advice: str = ""  # advice for people who train or modify models

    @property
    def counts(self) -> dict[str, int]:
        """Return how many claims have each verdict."""
        return {verdict: sum(claim.verdict == verdict for claim in self.claims) for verdict in VERDICTS}

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for name, value in super().to_json().items():
            if name == "claims":
                data |= {"counts": self.counts, "claims": [claim_document(claim) for claim in self.claims]}
            else:
                data[name] = value
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Reproduction:
        kept = {name: value for name, value in data.items() if name not in ("format", "version")}
        read: _Document = decode(_Document, kept)
        found = cls(
            **{name: getattr(read, name) for name in vars(read) if name not in ("claims", "counts")},
            claims=tuple(_judged_again(claim, read.measured) for claim in read.claims),
        )
        if read.counts != found.counts:
            raise FieldError(f"counts: {_said(read.counts)} is in the file, but the claims give {_said(found.counts)}")
        return found

    def page_name(self, file: Path) -> str:  # noqa: ARG002
        return PAGE

    def table(self) -> pandas.DataFrame:
        """Return one row for each claim and each quantity that it is judged by."""
        import pandas

        rows = [
            (claim.name, claim.verdict, quantity, claim.medians[quantity], _least(values), _most(values), len(values))
            for claim in self.claims
            for quantity, values in claim.measured.items()
        ]
        return pandas.DataFrame(rows, columns=["claim", "verdict", "quantity", "median", "low", "high", "n"])

    def __repr__(self) -> str:
        return f"<Reproduction of {self.experiment}, preset {self.preset}: {_said(self.counts)}>"


@dataclass(frozen=True)
class Rule:
    """The rule of a claim in readable words: `sort_accuracy >= 0.95`."""

    reproduced: tuple[str, ...]
    contradicted: tuple[str, ...]
    given: tuple[str, ...] = ()

    @classmethod
    def of(cls, claim: Claim) -> Rule:
        return cls(tuple(map(str, claim.holds)), tuple(map(str, claim.fails)), tuple(map(str, claim.given)))


@dataclass(frozen=True)
class _ClaimDocument:
    """A claim in the file. Older files lack the bounds as numbers; then they are parsed from the rule in words."""

    name: str
    paper: str
    statement: str
    expected: str
    rule: Rule
    measured: dict[str, tuple[float, ...]]
    median: dict[str, float]
    verdict: str
    holds: tuple[Bound, ...] = ()
    fails: tuple[Bound, ...] = ()
    given: tuple[Bound, ...] = ()


@dataclass(frozen=True)
class _Document:
    """The file, before its claims are judged again."""

    attnscope: str
    experiment: str
    title: str
    paper: str
    summary: str
    preset: str
    params: dict[str, Any]
    seeds: tuple[int, ...]
    seconds: Size
    counts: dict[str, Count]
    claims: tuple[_ClaimDocument, ...]
    remarks: tuple[str, ...]
    measured: dict[str, tuple[float, ...]]  # of any size, and NaN and infinity, as an experiment may diverge
    records: tuple[dict[str, Any], ...]
    figures: tuple[Figure, ...]
    advice: str = ""  # missing in older files


def claim_document(claim: Claim) -> dict[str, Any]:
    """Return a claim with its verdict and medians, and with the limits of its rule in words and as numbers."""
    data: dict[str, Any] = encode(
        {
            "name": claim.name,
            "paper": claim.paper,
            "statement": claim.statement,
            "expected": claim.expected,
            "rule": Rule.of(claim),
            "measured": claim.measured,
            "median": claim.medians,
            "verdict": claim.verdict,
            "holds": claim.holds,
            "fails": claim.fails,
            "given": claim.given,
        }
    )
    return data


def _judged_again(kept: _ClaimDocument, measured: Mapping[str, tuple[float, ...]]) -> Claim:
    """Judge a claim by its rule and the numbers of the run. Refuse a file whose own verdict differs."""
    field_name = f"claims['{kept.name}']"
    try:
        holds = kept.holds or tuple(map(Bound.parse, kept.rule.reproduced))
        fails = kept.fails or tuple(map(Bound.parse, kept.rule.contradicted))
        given = kept.given or tuple(map(Bound.parse, kept.rule.given))
    except ValueError as error:
        raise FieldError(f"{field_name}.rule: {error}") from error
    claim = Claim(kept.name, kept.paper, kept.statement, kept.expected, holds, fails, given).judged(measured)
    if not holds or Rule.of(claim) != kept.rule:
        raise FieldError(f"{field_name}.rule: the rule in words differs from holds, fails and given")
    if encode(claim.measured) != encode(kept.measured):
        raise FieldError(f"{field_name}.measured: these are not the numbers under 'measured'")
    if encode(claim.medians) != encode(kept.median):
        raise FieldError(f"{field_name}.median: it is not the median of the numbers")
    if claim.verdict != kept.verdict:
        raise FieldError(
            f"{field_name}.verdict: '{kept.verdict}' is in the file, but its rule and numbers give '{claim.verdict}'"
        )
    return claim


def _least(values: tuple[Number, ...]) -> float:
    return min(_finite_or_infinite(values), default=math.nan)


def _most(values: tuple[Number, ...]) -> float:
    return max(_finite_or_infinite(values), default=math.nan)


def _finite_or_infinite(values: tuple[Number, ...]) -> list[float]:
    """Return the values that are not missing (None before writing, NaN after reading)."""
    return [float(value) for value in values if value is not None and not math.isnan(value)]


def _said(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
