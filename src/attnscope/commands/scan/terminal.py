"""A survey in a terminal: the verdict, the findings, and where the page is; with `verbose` also the numbers.

80 columns, colour optional. Everything is built from `Text`, never from markup: a model called `[red]x` is called just
that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnscope.commands.scan.diagnose import Thresholds, diagnose
from attnscope.commands.scan.survey.readings import grids
from attnscope.commands.scan.survey.survey import Survey
from attnscope.commands.scan.words import (
    NAMES,
    corpus_words,
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

# How a survey shows itself in a notebook: what was found, a few numbers. All text is escaped.


def html(survey: Survey) -> str:
    findings = "".join(f"<li><b>{NAMES[f.severity][0]}</b> {escape(f.sentence)}</li>" for f in diagnose(survey))
    rows = "".join(
        f"<tr><th>{escape(title)}</th><td>{escape(place)}</td>"
        + "".join(f"<td>{escape(number(n))}</td>" for n in numbers)
        + "</tr>"
        for title, place, numbers in _headlines(survey)
    )
    told = "".join(f"<p><b>Note</b> {escape(note)}</p>" for note in notes(survey))
    return (
        f"{told}<ul>{findings}</ul>"
        "<table><thead><tr><th>measure</th><th>place</th><th>lowest</th><th>mean</th><th>highest</th></tr></thead>"
        f"<tbody>{rows}</tbody></table>"
    )


def _headlines(survey: Survey) -> list[tuple[str, str, tuple[float, float, float]]]:
    """Lowest, mean and highest over layers and heads of the first part of every measure."""
    lines = []
    for name, card in survey.cards.items():
        for grid in grids(survey, name, card.parts[0]):
            if grid.measured:
                numbers = (np.nanmin(grid.means), np.nanmean(grid.means), np.nanmax(grid.means))
                lines.append((card.title, f"{grid.stack} {grid.site}", tuple(float(n) for n in numbers)))
    return lines  # type: ignore[return-value]


STYLE: dict[str, str] = {"critical": "bold red", "warning": "yellow", "note": "blue"}
SPARK_WIDTH = 30
MOST_LINES = 24  # of the screen without --verbose; with what every screen ends with they are at most 30
FEW_REASONS = 2  # why something was not measured, beyond which they are counted


def show(
    survey: Survey,
    *,
    findings: Sequence[Finding] | None = None,
    thresholds: Thresholds | None = None,
    verbose: bool = False,
) -> RenderableType:
    """What a console prints. `thresholds` are those behind the findings; headlines obey them too."""
    findings = diagnose(survey, thresholds) if findings is None else findings
    conclusion = verdict(survey, findings, thresholds)
    told = next((one for one in findings if conclusion.sentence.startswith(one.sentence)), None)
    first = opening(conclusion, *([told.advice] if told else []), _about(survey))
    first += [Text(f"Note: {clean(note)}", style="yellow") for note in notes(survey)]
    others = [one for one in findings if one is not told]
    missing: list[RenderableType] = [Text(clean(sentence), style="dim") for sentence in _missing(survey, verbose)]
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
    """As many findings, worst first, as MOST_LINES hold; how many are left out is said."""

    first: RenderableType
    findings: Sequence[Finding]
    last: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        def height(thing: RenderableType) -> int:
            return len(console.render_lines(thing, options, pad=False))

        room = MOST_LINES - height(self.first) - height(self.last) - 2  # one blank, one that says how many more
        shown = 0
        while shown < len(self.findings) and (room := room - height(finding_table([self.findings[shown]]))) >= 0:
            shown += 1
        left_out = len(self.findings) - shown
        yield self.first
        if shown:
            yield Text("")
            yield finding_table(self.findings[:shown])
        if left_out:
            yield Text(f"{left_out:,} more in the report, or with --verbose.", style="dim")
        yield self.last


def _about(survey: Survey) -> str:
    read = ", ".join(corpus_words(survey))
    return f"{model_name(survey)}, {f'reading {read}' if read else 'no corpus is named'}"


def _missing(survey: Survey, verbose: bool) -> tuple[str, ...]:
    said = missing_words(survey)
    if verbose or len(said) <= FEW_REASONS:
        return said
    return ("Some of what was asked for could not be measured: the report says what and why, and so does --verbose.",)


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
        if advice and finding.severity != "note":
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
    table.add_row(*(Text(t, style="dim") for t in ("", "first to last", "first", "last")))
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
