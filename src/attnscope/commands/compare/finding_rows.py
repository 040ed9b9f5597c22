"""Pairs of findings as lines: title, amounts before and after, severity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from attnscope.commands.compare.changes import card_of
from attnscope.commands.compare.paired_findings import FindingChange, concerned
from attnscope.commands.compare.record import Comparison
from attnscope.core.finding import Finding
from attnscope.core.words import number, within

_TITLES = {
    "collapse": "Token collapse",
    "nonfinite": "NaN or infinity",
    "sink": "Attention sinks",
    "sink_elsewhere": "Sinks after the first token",
    "smoothing": "Over-smoothing",
}


class Row(NamedTuple):
    """A pair of findings as a line: `Uniform heads`, ` 4 → 24`, `note → to know`."""

    title: str
    amount: str
    severity: str

    @property
    def tail(self) -> str:
        return f"{self.amount} ({self.severity})"

    @property
    def words(self) -> str:
        return f"{self.title}{self.tail}"


def row(comparison: Comparison, pair: FindingChange) -> Row:
    """Return a pair as a line, with the number of heads or places before and after, or else its value."""
    title = finding_title(comparison, pair.either)
    sides = [side for side in (pair.before, pair.after) if side is not None]
    noun = amount_noun(sides)
    if not noun:
        amounts, tail = [number(side.value) for side in sides], ""
    else:
        amounts = [f"{concerned(side):,}" if side is not None else "0" for side in (pair.before, pair.after)]
        tail = "" if noun in title.split() else f" {noun[:-1] if amounts[-1] == '1' else noun}"
    return Row(title, f"{' ' if noun else ': '}{' → '.join(dict.fromkeys(amounts))}{tail}", severity_words(pair))


def amount_noun(sides: Sequence[Finding]) -> str:
    """Return the noun for what these findings count, "heads" or "places"; "" if each concerns one place."""
    if any(side.heads for side in sides):
        return "heads"
    return "places" if any(len(side.layers) > 1 for side in sides) else ""


def severity_words(pair: FindingChange) -> str:
    """Return `note → to know`, `wrong`, `was a note`."""
    old, new = (None if side is None else side.severity_words for side in (pair.before, pair.after))
    if new is None:
        return f"was {'a ' if old == 'note' else ''}{old}"
    before = 0 if pair.before is None else concerned(pair.before)
    moved = ", elsewhere" if pair.status == "changed" and concerned(pair.either) == before else ""
    return f"{new}{moved}" if old in (None, new) else f"{old} → {new}"


def finding_title(comparison: Comparison, finding: Finding) -> str:
    """Return `Uniform heads of the encoder`, `Norm growth above 10`."""
    several = len({stack for survey in comparison.surveys for stack in survey.stacks}) > 1
    title = _TITLES.get(finding.kind, finding.kind.replace("_", " ").capitalize())
    if finding.kind == "alarm":
        card = card_of(comparison.surveys, str(finding.details.get("measure")))
        relation = "above" if finding.value > finding.threshold else "below"
        title = f"{card.title if card else finding.details.get('measure')} {relation} {number(finding.threshold)}"
    if finding.details.get("step") == "down":
        title = f"{title} cancelled"
    return f"{title}{within(finding.stack, str(finding.details.get('site')), several)}"


def inside_sentence(title: str) -> str:
    """Return a title for the middle of a sentence; abbreviations keep their capitals."""
    return title[:1].lower() + title[1:] if title.split(" ", maxsplit=1)[0][1:].islower() else title
