"""The page of a comparison: what got worse and better, the largest changes, then all surveys side by side; one file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from altair.utils.schemapi import debug_mode

from attnscope.commands.compare.chart import comparison_profile
from attnscope.commands.compare.paired_findings import IMPROVEMENTS, REGRESSIONS, Status
from attnscope.commands.compare.record import Change, Comparison
from attnscope.commands.compare.settings import setting_notes
from attnscope.commands.compare.tables import finding_sides, headline_sides, provenance_sides
from attnscope.commands.compare.words import (
    EFFECT,
    MOST_OF_A_MEASURE,
    Row,
    change_title,
    change_words,
    labels,
    largest_changes,
    names,
    row,
    unit,
    values,
    verdict,
)
from attnscope.commands.scan.figures import HeadMap, difference_drawing, differences, figures, head_maps
from attnscope.commands.scan.words import corpus_words, site_title
from attnscope.core.card import Card
from attnscope.core.words import numeral
from attnscope.reports.export import Drawn, drawn
from attnscope.reports.page import page
from attnscope.reports.rows import Panel, depth_rows, panels

# The pictures on the page of a comparison: lines against depth, and the difference of every head.

WIDTH, HEIGHT = 300, 150  # of a whole chart: no card is narrower, so no letter shrinks


def profiles(found: Comparison, tables: Sequence[pd.DataFrame]) -> tuple[Drawn, ...]:
    """The lines of every measure that all surveys have, the largest effect first."""
    shared = set.intersection(*(set(panels(table)) for table in tables[1:]))
    order = [panel for panel in panels(tables[0], found.first.stacks) if panel in shared]
    effects = _effects(found)
    several = len({(panel.stack, panel.site == "stream") for panel in order}) > 2
    made = []
    with debug_mode(False):  # the tests validate every chart; here it would cost more than drawing them
        for panel in sorted(order, key=lambda panel: -effects.get(panel, 0.0)):
            card = found.first.cards[panel.measure]
            chart = comparison_profile(
                tables,
                card,
                names=labels(found),
                stack=panel.stack,
                site=panel.site,
                width=WIDTH,
                height=HEIGHT,
                title=False,
                fit=True,
            )
            made.append(
                drawn(
                    chart,
                    f"lines-{panel.stack}-{panel.site}-{panel.measure}",
                    title=card.title,
                    caption=site_title(panel.stack, panel.site) if several else "",
                    summary=_summary(found, tables, card, panel),
                )
            )
    return tuple(made)


def _effects(found: Comparison) -> dict[Panel, float]:
    """How far apart the lines of a panel are at most: effects are averaged over the heads of a block, as lines are."""
    every: dict[tuple[Panel, str, int, int], list[float]] = {}
    for change in found.changes:
        panel = Panel(change.measure, change.stack, "stream" if change.site == "middle" else change.site)
        if change.part == found.first.cards[change.measure].parts[0]:
            every.setdefault((panel, change.site, change.layer, change.survey), []).append(change.effect)
    effects: dict[Panel, float] = {}
    for (panel, *_), some in every.items():
        effects[panel] = max(effects.get(panel, 0.0), abs(float(np.mean(some))))
    return effects


def _summary(found: Comparison, tables: Sequence[pd.DataFrame], card: Card, panel: Panel) -> str:
    """What a person who cannot see the lines should know: where each begins and ends."""
    ends = []
    for name, table in zip(names(found), tables, strict=True):
        rows = depth_rows(table, card, panel)
        means = rows[rows["part"] == rows["part"].iloc[0]]["mean"].dropna()
        ends.append(
            f"{name} from {numeral(means.iloc[0], 3)} to {numeral(means.iloc[-1], 3)}"
            if len(means)
            else f"{name} has no finite number"
        )
    return f"{card.title} against depth: {'; '.join(ends)}."


@dataclass(frozen=True)
class DifferenceMap:
    """Second minus first for every head: a drawing, and the numbers that the page's script reads out of it."""

    before: HeadMap
    after: HeadMap
    drawing: str
    reach: float
    effect: float

    @property
    def title(self) -> str:
        return self.before.title

    @property
    def unit(self) -> str:
        return self.before.card.unit

    @property
    def summary(self) -> str:
        change = differences(self.before, self.after)
        assert change is not None
        finite = np.where(np.isfinite(change), change, 0.0)
        layer, head = np.unravel_index(int(np.abs(finite).argmax()), finite.shape)
        before, after = (numeral(float(m.numbers["mean"][layer, head]), 3) for m in (self.before, self.after))
        return f"{self.title}, difference of every head: largest in block {layer}, head {head}, {before} to {after}."

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "unit": self.unit,
            "layers": self.before.layers,
            "heads": self.before.heads,
            "before": figures(self.before.numbers["mean"]),
            "after": figures(self.after.numbers["mean"]),
        }


def difference_maps(found: Comparison, tables: Sequence[pd.DataFrame]) -> tuple[DifferenceMap, ...]:
    """Every map in which something differs, the largest effect first; none where blocks or heads are not as many."""
    twins = {(m.card.name, m.part, m.stack, m.site): m for m in head_maps(found.second, tables[-1])}
    effects: dict[tuple[str, str, str, str], float] = {}
    for change in found.changes:
        key = (change.measure, change.part, change.stack, change.site)
        effects[key] = max(effects.get(key, 0.0), abs(change.effect))
    made = []
    for one in head_maps(found.first, tables[0]):
        key = (one.card.name, one.part, one.stack, one.site)
        apart = differences(one, twins[key]) if key in twins else None
        if apart is not None and (apart[np.isfinite(apart)] != 0).any():
            drawing, reach = difference_drawing(apart)
            made.append(DifferenceMap(one, twins[key], drawing, reach, effects.get(key, 0.0)))
    return tuple(sorted(made, key=lambda one: -one.effect))


MOST_CHANGES = 12
MOST_LINES, MOST_MAPS = 6, 8  # pictures in sight, full rows on a desk; the others are folded
GROUPS: tuple[tuple[str, tuple[Status, ...]], ...] = (
    ("Worse or new", REGRESSIONS),
    ("Better or gone", IMPROVEMENTS),
    ("Changed, neither better nor worse", ("changed",)),
    ("The same", ("same",)),
)


def render(found: Comparison) -> str:
    """The page as text. Equal records give equal pages."""
    tables = [survey.table() for survey in found.surveys]
    lines = profiles(found, tables)
    maps = difference_maps(found, tables) if len(found.surveys) == 2 else ()
    return page(
        "comparison.html",
        verdict=verdict(found),
        figures=lines,
        styles=("comparison.css",),
        scripts=("comparison.js",),
        names=names(found),
        labels=labels(found),
        corpora=[", ".join(corpus_words(survey)) for survey in found.surveys],
        notes=setting_notes(found),
        groups=_groups(found),
        changes=[_changed(found, change) for change in largest_changes(found, MOST_CHANGES)],
        change_heading=change_words(found),
        effect=EFFECT,
        most_of_a_measure=MOST_OF_A_MEASURE,
        findings=finding_sides(found),
        headlines=headline_sides(found, tables),
        lines=lines,
        maps=maps,
        places=len({(one.before.stack, one.before.site) for one in maps}),
        data={"maps": [one.to_json() for one in maps], "names": list(names(found))},
        most_lines=MOST_LINES,
        most_maps=MOST_MAPS,
        provenance=provenance_sides(found),
        thresholds=sorted(vars(found.thresholds).items()),
    )


def _groups(found: Comparison) -> list[tuple[str, list[Row]]]:
    """Rows of findings under the heading of what became of them; empty groups are left out."""
    told = [(heading, [row(found, pair) for pair in found.findings if pair.status in some]) for heading, some in GROUPS]
    return [(heading, rows) for heading, rows in told if rows]


@dataclass(frozen=True)
class Changed:
    """A number that moved, as a row of the table."""

    survey: int
    title: str
    before: str
    after: str
    difference: str
    unit: str
    effect: str


def _changed(found: Comparison, change: Change) -> Changed:
    before, after = values(change)
    sign = "+" if change.difference > 0 else ""
    return Changed(
        survey=change.survey,
        title=change_title(found, change),
        before=before,
        after=after,
        difference=f"{sign}{numeral(change.difference, 3)}",
        unit=unit(found, change),
        effect=f"{change.effect:+.1f}",
    )
