"""From a finding to the sequence behind it: a survey keeps the tokens of the sequences that its findings point at.

A finding about a largest value knows in which sequence it was seen (`details["sample"]`) and at which token. Sequences
are numbered within one corpus, so a survey merged of several corpora shows none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from attnscope.core.finding import Finding

Excerpts = dict[int, tuple[str, ...]]
"""Sequences by number, each as the texts of its tokens."""

Sequences = dict[int, dict[str, tuple[int, ...]]]
"""The same sequences as the model was given them: numbers of tokens by argument."""

MOST_EXCERPTS = 12


@dataclass(frozen=True)
class Token:
    text: str
    marked: bool


@dataclass(frozen=True)
class Evidence:
    """A sequence and the tokens in it that a finding is about."""

    sample: int
    tokens: tuple[Token, ...]

    @property
    def words(self) -> str:
        places = [str(place) for place, token in enumerate(self.tokens) if token.marked]
        marked = f", token {' and '.join(places)} marked" if places else ""
        return f"The sequence behind this number (sample {self.sample}{marked})"


def view_name(sample: int) -> str:
    """What the page of one sequence is called beside a report."""
    return f"view-{sample}.html"


def samples_behind(findings: Iterable[Finding]) -> tuple[int, ...]:
    """Numbers of the sequences that findings point at, each once, in the order of the findings."""
    named = (finding.details.get("sample") for finding in findings)
    return tuple(dict.fromkeys(sample for sample in named if isinstance(sample, int)))[:MOST_EXCERPTS]


def evidence(finding: Finding, excerpts: Mapping[int, tuple[str, ...]]) -> Evidence | None:
    """None where a finding points at no sequence, or its text was not kept."""
    sample = finding.details.get("sample")
    if not isinstance(sample, int) or sample not in excerpts:
        return None
    marked = {finding.details.get(label) for label in ("token", "key")} - {None}
    return Evidence(sample, tuple(Token(text, place in marked) for place, text in enumerate(excerpts[sample])))
