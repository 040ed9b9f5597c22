"""A survey in a terminal and in a notebook. Screens use rich `Text`, never markup: a model may be called `[red]x`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnscope.commands.atlas.ranges import reference
from attnscope.commands.scan.diagnose import Thresholds, diagnose
from attnscope.commands.scan.survey.readings import grids
from attnscope.commands.scan.survey.survey import Survey
from attnscope.commands.scan.words import (
    corpus_words,
    facts,
    headlines,
    missing_words,
    model_name,
    notes,
    site_title,
    verdict,
)
from attnscope.core.finding import Finding
from attnscope.core.words import clean, number, numeral
from attnscope.reports.terminal import BLOCKS, opening, section

COLUMNS = ("measure", "place", "lowest", "mean", "highest")
STYLE: dict[str, str] = {"wrong": "bold red", "to_know": "bold blue", "note": "blue"}
SPARK_WIDTH = 16
MOST_LINES = 24  # length of the screen without --verbose, without the closing lines
FEW_REASONS = 2  # reasons for missing measures that are shown in full


def html(survey: Survey) -> str:
    """Return findings and the range of every measure over blocks and heads, for a notebook. All text is escaped."""
    findings = "".join(f"<li><b>{f.severity_words}</b> {escape(f.sentence)}</li>" for f in diagnose(survey))
    rows = []
    for name, card in survey.cards.items():
        for grid in grids(survey, name, card.parts[0]):
            if grid.measured:
                numbers = (np.nanmin(grid.means), np.nanmean(grid.means), np.nanmax(grid.means))
                cells = (f"{grid.stack} {grid.site}", *(number(float(n)) for n in numbers))
                tail = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
                rows.append(f"<tr><th>{escape(card.title)}</th>{tail}</tr>")
    warnings = "".join(f"<p><b>Note</b> {escape(note)}</p>" for note in notes(survey))
    heading = "".join(f"<th>{word}</th>" for word in COLUMNS)
    table = f"<table><thead><tr>{heading}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f"{warnings}<ul>{findings}</ul>{table}"


def show(
    survey: Survey,
    *,
    findings: Sequence[Finding] | None = None,
    thresholds: Thresholds | None = None,
    verbose: bool = False,
) -> RenderableType:
    """Return the screen: verdict and findings; with `verbose` also headline numbers and depth profiles."""
    findings = diagnose(survey, thresholds) if findings is None else findings
    conclusion = verdict(survey, findings, thresholds)
    worst = next((f for f in findings if f.severity == "wrong"), None)  # the verdict states it
    read = ", ".join(corpus_words(survey))
    about = f"{model_name(survey)}, {f'reading {read}' if read else 'no corpus is named'}"
    first = opening(conclusion, *([worst.advice] if worst else []), about)
    first += [Text(clean(sentence)) for sentence in facts(survey)]
    first += [Text(f"Note: {clean(note)}", style="yellow") for note in notes(survey)]
    others = [f for f in findings if f is not worst]
    reasons = missing_words(survey)
    if not verbose and len(reasons) > FEW_REASONS:
        reasons = ("Some requested measures are missing: the report and --verbose say which and why.",)
    missing: list[RenderableType] = [Text(clean(sentence), style="dim") for sentence in reasons]
    if not verbose:
        return _Brief(Group(*first), others, Group(*missing))
    listed: list[RenderableType] = [Text(""), finding_table(others)] if others else []
    return Group(
        *first,
        *listed,
        section("In numbers"),
        _headline_table(survey, thresholds),
        section("From the first block to the last"),
        _depth_table(survey),
        *([Text(""), *missing] if missing else []),
    )


@dataclass(frozen=True)
class _Brief:
    """The most severe findings that fit into MOST_LINES, and the number of skipped ones."""

    first: RenderableType
    findings: Sequence[Finding]
    last: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        def height(thing: RenderableType) -> int:
            return len(console.render_lines(thing, options, pad=False))

        room = MOST_LINES - height(self.first) - height(self.last) - 2  # a blank line and "N more"
        fitting = 0
        while fitting < len(self.findings) and (room := room - height(finding_table([self.findings[fitting]]))) >= 0:
            fitting += 1
        yield self.first
        if fitting:
            yield Text("")
            yield finding_table(self.findings[:fitting])
        if skipped := len(self.findings) - fitting:
            yield Text(f"{skipped:,} more in the report, or with --verbose.", style="dim")
        yield self.last


def sparkline(values: Iterable[float], *, log: bool = False, width: int = SPARK_WIDTH) -> str:
    """Return values as a row of block characters, `?` for NaN. Long rows are averaged in groups."""
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
        if advice and finding.severity != "note":
            words.append("\n" + clean(finding.advice), style="dim")
        table.add_row(Text(finding.severity_words, style=STYLE[finding.severity]), words)
    return table


def _depth_table(survey: Survey) -> Table:
    """Return the first part of every measure: means over sequences, and over the heads of a block."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=26)
    table.add_column(no_wrap=True, style="blue")
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True, style="dim")
    table.add_row(*(Text(t, style="dim") for t in ("", "first to last", "first", "last", "usual")))
    places = sorted({(k.stack, k.site) for k in survey.cells if k.site != "middle"}, key=lambda p: _order(survey, p))
    for stack, site in places:
        if len(places) > 2:
            table.add_row(Text(clean(site_title(stack, site)), style="dim"))
        for name, card in survey.cards.items():
            means = np.array([_mean(cell) for cell in survey.column(name, card.parts[0], stack, site).values()])
            if not np.isfinite(means).any():
                continue
            ends = (numeral(n) if np.isfinite(n) else "NaN" for n in (means[0], means[-1]))
            found = reference(survey, name, card.parts[0], stack, site)
            usual = "" if found is None else f"{numeral(found.low, 2)} to {numeral(found.high, 2)}"
            table.add_row(Text(clean(card.title)), Text(sparkline(means, log=card.log)), *ends, usual)
    return table


def _order(survey: Survey, place: tuple[str, str]) -> tuple[int, int]:
    """Sort by stack, the stream before attention."""
    return survey.stacks.index(place[0]), ("stream", "middle", "self", "uneven", "cross").index(place[1])


def _mean(cell: Any) -> float:
    means = np.atleast_1d(cell.moments.mean)
    finite = means[np.isfinite(means)]
    return float(finite.mean()) if finite.size else float("nan")
