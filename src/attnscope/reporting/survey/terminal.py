"""A survey in a terminal: headline, findings, depth as sparklines, and where the page is. 80 columns, colour optional.

Everything is built from `Text`, never from markup: a model called `[red]x` is called just that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnscope.core.finding import SEVERITIES, Finding, Severity
from attnscope.core.numerals import numeral
from attnscope.core.visible import clean
from attnscope.records.survey.diagnose import diagnose
from attnscope.records.survey.survey import Survey
from attnscope.records.survey.thresholds import Thresholds
from attnscope.reporting.survey.headlines import headlines
from attnscope.reporting.survey.words import (
    corpus_words,
    missing_words,
    model_name,
    note_words,
    site_title,
)
from attnscope.reporting.terminal import BLOCKS, section

STYLE: dict[str, str] = {"critical": "bold red", "warning": "yellow", "info": "blue"}
SPARK_WIDTH = 30
MOST_CHANGES = 10


def show(
    survey: Survey, *, findings: Sequence[Finding] | None = None, thresholds: Thresholds | None = None
) -> RenderableType:
    """What a console prints. `thresholds` are those behind the findings; headlines obey them too."""
    findings = diagnose(survey, thresholds) if findings is None else findings
    parts: list[RenderableType] = [
        Text(""),
        Text(clean(model_name(survey)), style="bold"),
        Text(clean(", ".join(corpus_words(survey)) or "no corpus is named"), style="dim"),
        *(Text(f"Note: {clean(note)}", style="yellow") for note in note_words(survey)),
        Text(""),
        _headline_table(survey, thresholds),
        section(_counts(findings)),
        finding_table(findings),
        section("Depth"),
        _depth_table(survey),
    ]
    missing = missing_words(survey)
    if missing:
        parts += [Text(""), *(Text(clean(sentence), style="dim") for sentence in missing)]
    return Group(*parts)


def sparkline(values: Iterable[float], *, log: bool = False, width: int = SPARK_WIDTH) -> str:
    """Values as a row of blocks; `?` where there is no number. Long rows are averaged in groups."""
    numbers = np.asarray(list(values), dtype=float)
    numbers[~np.isfinite(numbers)] = np.nan
    if log:
        numbers = np.log(np.where(numbers > 0, numbers, np.nan))
    if len(numbers) > width:
        groups = np.array_split(numbers, width)
        numbers = np.array([np.nan if np.isnan(g).all() else np.nanmean(g) for g in groups])
    seen = numbers[np.isfinite(numbers)]
    if not seen.size:
        return "?" * len(numbers)
    low, reach = seen.min(), seen.max() - seen.min()
    places = np.zeros(len(numbers)) if reach == 0 else (numbers - low) / reach * (len(BLOCKS) - 1)
    return "".join("?" if np.isnan(n) else BLOCKS[round(float(p))] for n, p in zip(numbers, places, strict=True))


def _headline_table(survey: Survey, thresholds: Thresholds | None) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", style="bold", no_wrap=True)
    table.add_column(style="dim")
    for line in headlines(survey, survey.table(), thresholds):
        table.add_row(clean(line.label), Text(clean(line.value)), Text(clean(line.note)))
    return table


def finding_table(findings: Sequence[Finding], *, advice: bool = True) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column()
    for finding in findings:
        words = Text(clean(finding.sentence))
        if advice and finding.severity != "info":
            words.append("\n" + clean(finding.advice), style="dim")
        table.add_row(Text(finding.severity, style=STYLE[finding.severity]), words)
    return table


def _depth_table(survey: Survey) -> Table:
    """The first part of every measure: means over sequences, and over the heads of a layer."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=26)
    table.add_column(no_wrap=True, style="blue")
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_row(*(Text(t, style="dim") for t in ("", "first layer to last", "first", "last")))
    places = sorted({(k.stack, k.site) for k in survey.cells if k.site != "middle"}, key=lambda p: _order(survey, p))
    for stack, site in places:
        if len(places) > 2:
            table.add_row(Text(clean(site_title(stack, site)), style="dim"))
        for name, card in survey.cards.items():
            means = np.array([_mean(cell) for cell in survey.column(name, card.parts[0], stack, site).values()])
            if not np.isfinite(means).any():
                continue
            table.add_row(
                Text(clean(card.title)),
                Text(sparkline(means, log=card.log)),
                numeral(means[0]) if np.isfinite(means[0]) else "NaN",
                numeral(means[-1]) if np.isfinite(means[-1]) else "NaN",
            )
    return table


def _order(survey: Survey, place: tuple[str, str]) -> tuple[int, int]:
    """Stack by stack, the stream before attention."""
    return survey.stacks.index(place[0]), ("stream", "middle", "self", "uneven", "cross").index(place[1])


def _mean(cell: Any) -> float:
    means = np.atleast_1d(cell.moments.mean)
    finite = means[np.isfinite(means)]
    return float(finite.mean()) if finite.size else float("nan")


def _counts(findings: Sequence[Finding]) -> str:
    if not findings:
        return "Findings: nothing crossed a threshold"
    severities: tuple[Severity, ...] = tuple(reversed(SEVERITIES))
    counted = [(s, sum(f.severity == s for f in findings)) for s in severities]
    return "Findings: " + ", ".join(f"{n} {severity}" for severity, n in counted if n)
