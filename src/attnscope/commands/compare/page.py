"""The page of a comparison: its document, with lines against depth and a map of the difference of every head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from altair.utils.schemapi import debug_mode

from attnscope.commands.compare.changes import labels, names
from attnscope.commands.compare.chart import comparison_profile
from attnscope.commands.compare.record import Comparison
from attnscope.commands.compare.words import document
from attnscope.commands.scan.figures import HeadMap, difference_drawing, differences, figures, head_maps
from attnscope.commands.scan.words import site_title
from attnscope.core.card import Card
from attnscope.core.words import numeral
from attnscope.reports.export import Drawn, drawn
from attnscope.reports.page import document_page
from attnscope.reports.rows import Panel, depth_rows, panels

WIDTH, HEIGHT = 300, 150  # pixels of a chart; cards are never narrower, so text is not scaled down
MOST_LINES, MOST_MAPS = 6, 8  # charts that are open; the others are collapsed


def profiles(comparison: Comparison, tables: Sequence[pd.DataFrame]) -> tuple[Drawn, ...]:
    """Return a chart of every measure that all surveys have, largest effect first."""
    shared = set.intersection(*(set(panels(table)) for table in tables[1:]))
    order = [panel for panel in panels(tables[0], comparison.first.stacks) if panel in shared]
    effects = _effects(comparison)
    several = len({(panel.stack, panel.site == "stream") for panel in order}) > 2
    made = []
    with debug_mode(False):  # validation takes longer than drawing, and the tests validate every chart
        for panel in sorted(order, key=lambda panel: -effects.get(panel, 0.0)):
            card = comparison.first.cards[panel.measure]
            size: dict[str, Any] = {"width": WIDTH, "height": HEIGHT, "title": False, "fit": True}
            chart = comparison_profile(
                tables, card, names=labels(comparison), stack=panel.stack, site=panel.site, **size
            )
            name = f"lines-{panel.stack}-{panel.site}-{panel.measure}"
            caption = site_title(panel.stack, panel.site) if several else ""
            summary = _summary(comparison, tables, card, panel)
            made.append(drawn(chart, name, title=card.title, caption=caption, summary=summary))
    return tuple(made)


def _effects(comparison: Comparison) -> dict[Panel, float]:
    """Return the largest effect of each panel. Like its lines, effects are averaged over the heads of a block."""
    every: dict[tuple[Panel, str, int, int], list[float]] = {}
    for change in comparison.changes:
        panel = Panel(change.measure, change.stack, "stream" if change.site == "middle" else change.site)
        if change.part == comparison.first.cards[change.measure].parts[0]:
            every.setdefault((panel, change.site, change.layer, change.survey), []).append(change.effect)
    effects: dict[Panel, float] = {}
    for (panel, *_), some in every.items():
        effects[panel] = max(effects.get(panel, 0.0), abs(float(np.mean(some))))
    return effects


def _summary(comparison: Comparison, tables: Sequence[pd.DataFrame], card: Card, panel: Panel) -> str:
    """Return the first and last value of each line, for screen readers."""
    ends = []
    for name, table in zip(names(comparison), tables, strict=True):
        rows = depth_rows(table, card, panel)
        means = rows[rows["part"] == rows["part"].iloc[0]]["mean"].dropna()
        span = f"from {numeral(means.iloc[0], 3)} to {numeral(means.iloc[-1], 3)}" if len(means) else "has no number"
        ends.append(f"{name} {span}")
    return f"{card.title} against depth: {'; '.join(ends)}."


@dataclass(frozen=True)
class DifferenceMap:
    """Second minus first for every head, as a drawing and as numbers for the page's script."""

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


def difference_maps(comparison: Comparison, tables: Sequence[pd.DataFrame]) -> tuple[DifferenceMap, ...]:
    """Return every map that differs, largest effect first; none if the numbers of blocks or heads differ."""
    twins = {(m.card.name, m.part, m.stack, m.site): m for m in head_maps(comparison.second, tables[-1])}
    effects: dict[tuple[str, str, str, str], float] = {}
    for change in comparison.changes:
        key = (change.measure, change.part, change.stack, change.site)
        effects[key] = max(effects.get(key, 0.0), abs(change.effect))
    made = []
    for one in head_maps(comparison.first, tables[0]):
        key = (one.card.name, one.part, one.stack, one.site)
        apart = differences(one, twins[key]) if key in twins else None
        if apart is not None and (apart[np.isfinite(apart)] != 0).any():
            drawing, reach = difference_drawing(apart)
            made.append(DifferenceMap(one, twins[key], drawing, reach, effects.get(key, 0.0)))
    return tuple(sorted(made, key=lambda one: -one.effect))


def render(comparison: Comparison) -> str:
    """Return the page: the document, then lines against depth and maps of differences."""
    tables = [survey.table() for survey in comparison.surveys]
    lines = profiles(comparison, tables)
    maps = difference_maps(comparison, tables) if len(comparison.surveys) == 2 else ()
    return document_page(
        document(comparison),
        comparison.COMMAND,
        template="comparison.html",
        styles=("comparison.css",),
        scripts=("comparison.js",),
        figures=lines,
        names=names(comparison),
        lines=lines,
        maps=maps,
        places=len({(map.before.stack, map.before.site) for map in maps}),
        data={"maps": [map.to_json() for map in maps], "names": list(names(comparison))},
        most_lines=MOST_LINES,
        most_maps=MOST_MAPS,
    )
