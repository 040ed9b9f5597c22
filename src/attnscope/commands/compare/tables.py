"""Surveys side by side as tables, a column for each: findings, headline numbers, provenance. Plain data for page and
terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from attnscope.commands.compare.paired_findings import concerned, identity
from attnscope.commands.compare.record import Comparison
from attnscope.commands.compare.words import amount_noun, finding_title
from attnscope.commands.scan.diagnose import diagnose
from attnscope.commands.scan.words import headlines
from attnscope.core.finding import Finding, Severity
from attnscope.core.words import count, number
from attnscope.reports.document import rows


@dataclass(frozen=True)
class Found:
    """A kind of finding in one survey: `24 heads`, `warning`."""

    severity: Severity
    word: str
    amount: str
    number: str  # the same without its noun, for narrow columns


@dataclass(frozen=True)
class Line:
    """A row of a table with a cell for every survey; None where one has nothing there."""

    label: str
    cells: tuple[tuple[str, str] | None, ...]

    @property
    def differs(self) -> bool:
        return len({None if cell is None else cell[0] for cell in self.cells}) > 1


def finding_sides(found: Comparison) -> tuple[tuple[str, tuple[tuple[Found, ...], ...]], ...]:
    """Every kind of finding in the order of the pairs, and what each survey has of it."""
    diagnosed = [diagnose(survey, found.thresholds) for survey in found.surveys]
    titles = {identity(pair.either): finding_title(found, pair.either) for pair in found.findings}
    lines = []
    for name, title in titles.items():
        cells = [[one for one in findings if identity(one) == name] for findings in diagnosed]
        every = [one for cell in cells for one in cell]
        lines.append((title, tuple(tuple(_found(one, every) for one in cell) for cell in cells)))
    return tuple(lines)


def _found(finding: Finding, every: Sequence[Finding]) -> Found:
    noun = amount_noun(every)
    bare = f"{concerned(finding):,}" if noun else number(finding.value)
    told = count(concerned(finding), noun[:-1]) if noun else bare
    return Found(finding.severity, finding.severity, told, bare)


def headline_sides(found: Comparison, tables: Sequence[pd.DataFrame]) -> tuple[Line, ...]:
    """The headline numbers of all surveys, with their notes."""
    sides = [
        {line.label: (line.value, line.note) for line in headlines(survey, table, found.thresholds)}
        for survey, table in zip(found.surveys, tables, strict=True)
    ]
    labels = dict.fromkeys(label for side in sides for label in side)
    return tuple(Line(label, tuple(side.get(label) for side in sides)) for label in labels)


def provenance_sides(found: Comparison) -> tuple[Line, ...]:
    """Where the numbers of all surveys come from."""
    sides = [
        dict(rows({k: v for k, v in survey.provenance.items() if k != "not_measured"})) for survey in found.surveys
    ]
    names = dict.fromkeys(name for side in sides for name in side)
    return tuple(Line(name, tuple((side[name], "") if name in side else None for side in sides)) for name in names)
