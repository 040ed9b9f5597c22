"""A survey in a terminal: headline, findings, depth as sparklines, and where the page is. 80 columns, colour optional.

Everything is built from `Text`, never from markup: a model called `[red]x` is called just that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from attnscope.charts.numerals import numeral
from attnscope.core.finding import SEVERITIES, Finding, Severity
from attnscope.core.visible import clean
from attnscope.pages.headlines import headlines
from attnscope.pages.wording import (
    build_words,
    change_words,
    changes_worth_listing,
    corpus_words,
    missing_words,
    model_name,
    site_title,
)
from attnscope.survey.compare import Change, Comparison
from attnscope.survey.survey import Survey
from attnscope.survey.thresholds import Thresholds

STYLE: dict[str, str] = {"critical": "bold red", "warning": "yellow", "info": "blue"}
BLOCKS = "▁▂▃▄▅▆▇█"
ASCII = str.maketrans(BLOCKS + "→×·–−�", "_.-=+*%#>x---?")
SPARK_WIDTH = 30
MOST_CHANGES = 10


def print_summary(
    survey: Survey,
    findings: Sequence[Finding],
    report: Path | None = None,
    console: Console | None = None,
    *,
    thresholds: Thresholds | None = None,
) -> None:
    """Print what a survey says. `thresholds` are those behind the findings; headlines obey them too."""
    print_page(summary(survey, findings, thresholds), report, console or Console())


def print_comparison(comparison: Comparison, report: Path | None = None, console: Console | None = None) -> None:
    """Print what changed between two surveys."""
    print_page(compared(comparison), report, console or Console())


def summary(survey: Survey, findings: Sequence[Finding], thresholds: Thresholds | None = None) -> Group:
    """What a survey says, to be printed by a console."""
    parts: list[RenderableType] = [
        Text(""),
        Text(clean(model_name(survey)), style="bold"),
        Text(clean(", ".join(corpus_words(survey)) or "no corpus is named"), style="dim"),
        Text(""),
        _headline_table(survey, thresholds),
        section(_counts(findings)),
        _finding_table(findings),
        section("Depth"),
        _depth_table(survey),
    ]
    missing = missing_words(survey)
    if missing:
        parts += [Text(""), *(Text(clean(sentence), style="dim") for sentence in missing)]
    return Group(*parts)


def compared(comparison: Comparison) -> Group:
    """What changed, to be printed by a console."""
    before, after = (
        clean(str((p.get("model") or {}).get("name", "unnamed model"))) for p in (comparison.before, comparison.after)
    )
    parts: list[RenderableType] = [
        Text(""),
        Text.assemble((before, "bold"), " → ", (after, "bold")),
        section("Findings that appeared" if comparison.appeared else "No finding appeared"),
        _finding_table(comparison.appeared, advice=False),
        section("Findings that are gone" if comparison.disappeared else "No finding is gone"),
        _finding_table(comparison.disappeared, advice=False),
        section(change_words(comparison)),
        _change_table(changes_worth_listing(comparison, MOST_CHANGES)),
    ]
    built = build_words(comparison.before, comparison.after)
    if built:
        parts.insert(2, Text(clean(built), style="dim"))
    for label, missing in (("first", comparison.only_before), ("second", comparison.only_after)):
        if missing:
            parts.append(Text(f"Only the {label} measured {clean(', '.join(missing))}.", style="dim"))
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


def print_page(what: Group, report: Path | None, console: Console) -> None:
    """A terminal that knows only ASCII gets the same picture in ASCII, not an error."""
    with console.capture() as captured:
        console.print(what)
        if report is not None:  # a path is there to be copied: it is never broken, whatever the width
            console.print(Text.assemble("\n", ("Report  ", "dim"), clean(str(report))), soft_wrap=True)
        console.print()
    text = captured.get()
    if console.options.ascii_only:
        text = text.translate(ASCII).encode("ascii", "replace").decode()
    console.file.write(text)


def _headline_table(survey: Survey, thresholds: Thresholds | None) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", style="bold", no_wrap=True)
    table.add_column(style="dim")
    for line in headlines(survey, survey.table(), thresholds):
        table.add_row(clean(line.label), Text(clean(line.value)), Text(clean(line.note)))
    return table


def _finding_table(findings: Sequence[Finding], *, advice: bool = True) -> Table:
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
    return survey.stacks.index(place[0]), ("stream", "middle", "self", "cross").index(place[1])


def _change_table(changes: Sequence[Change]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=22)
    table.add_column(overflow="fold")
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True, style="bold")
    for change in changes:
        head = "" if change.head is None else f" head {change.head}"
        table.add_row(
            Text(clean(change.measure if change.part == "value" else f"{change.measure} {change.part}")),
            Text(clean(f"{change.stack} {change.site} layer {change.layer}{head}"), style="dim"),
            f"{numeral(change.before)} → {numeral(change.after)}",
            f"{change.effect:+.1f}",
        )
    return table


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


def section(text: str) -> RenderableType:
    return Padding(Text(text, style="bold"), (1, 0, 0, 0))
