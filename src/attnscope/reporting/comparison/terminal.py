"""Two surveys in a terminal: findings that appeared and that are gone, and the largest changes."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnscope.core.numerals import numeral
from attnscope.core.visible import clean
from attnscope.records.comparison import Change, Comparison
from attnscope.reporting.comparison.words import build_words, change_words, changes_worth_listing
from attnscope.reporting.survey.terminal import finding_table
from attnscope.reporting.terminal import section

MOST_CHANGES = 10


def show(comparison: Comparison, *, verbose: bool = False) -> RenderableType:  # noqa: ARG001
    """What a console prints."""
    before, after = (
        clean(str((p.get("model") or {}).get("name", "unnamed model"))) for p in (comparison.before, comparison.after)
    )
    parts: list[RenderableType] = [
        Text(""),
        Text.assemble((before, "bold"), " → ", (after, "bold")),
        section("Findings that appeared" if comparison.appeared else "No finding appeared"),
        finding_table(comparison.appeared, advice=False),
        section("Findings that are gone" if comparison.disappeared else "No finding is gone"),
        finding_table(comparison.disappeared, advice=False),
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
