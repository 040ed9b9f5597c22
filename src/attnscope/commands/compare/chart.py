"""Charts of a comparison: one measure of all surveys against depth, or the difference of every head.

    found.chart()    found.chart("entropy")    found.chart("entropy", heads=True)
    comparison_profile([a.table(), b.table()], card, names=("step 1000", "step 2000"))

Depths may differ: a 6-block and a 12-block model share one axis of blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from attnscope.commands.compare.changes import labels
from attnscope.commands.compare.record import Comparison
from attnscope.commands.scan.chart import card_and_place
from attnscope.core.card import Card
from attnscope.core.errors import RefusalError
from attnscope.core.words import numeral
from attnscope.reports.rows import (
    Panel,
    depth_rows,
    depth_title,
    head_rows,
    panels,
    part_title,
    series_title,
    unit_title,
)
from attnscope.reports.survey_charts import chart_title, first_panel, grid_axes, reading_size, value_axis, value_scale

DASHES = ([1, 0], [6, 4], [1, 4], [10, 4, 1, 4], [3, 6], [14, 5])
WORDY = 18  # characters above which two names do not fit side by side
NARROW = 360  # pixels


def comparison_rows(
    tables: Sequence[pd.DataFrame], card: Card, panel: Panel, names: Sequence[str], part: str
) -> pd.DataFrame:
    """Return the depth rows of one part in all surveys, with a column `survey`."""
    sides = []
    for table, name in zip(tables, names, strict=True):
        rows = depth_rows(table, card, panel)
        rows = rows[rows["part"] == series_title(card, part)]
        sides.append(rows.assign(survey=name, label=[f"{name}, {text}" for text in rows["label"]]))
    return pd.concat(sides, ignore_index=True)


def comparison_profile(
    tables: Sequence[pd.DataFrame],
    card: Card,
    *,
    names: Sequence[str],
    part: str | None = None,
    stack: str | None = None,
    site: str | None = None,
    width: int = 340,
    height: int = 150,
    title: bool = True,
    fit: bool = False,
) -> alt.LayerChart:
    """Draw a line for every survey, each with its own colour and dashes; with two surveys, draw bands too.

    With `fit`, `width` is the width of the whole chart, with its axes.
    """
    unique = distinct(names)
    panel = first_panel(tables[0], card, stack, site)
    part = card.parts[0] if part is None else part
    rows = comparison_rows(tables, card, panel, unique, part)
    x = alt.X(
        "depth:Q",
        title=depth_title(card, panel),
        scale=alt.Scale(nice=False, zero=False, padding=6),
        axis=alt.Axis(values=block_ticks(rows["depth"]), format="d"),
    )
    scale = value_scale(rows, card)
    longest = max(map(len, unique))
    beside = 1 if width < NARROW and longest > WORDY else max(1, min(len(unique), width // (7 * min(longest, 24) + 30)))
    legend = alt.Legend(
        orient="top",
        columns=beside,
        labelLimit=max(100, (width - 60) // beside - 40),
        symbolType="stroke",
        symbolSize=400,
        symbolStrokeWidth=2,
    )
    # Vega-Lite merges the legends of both channels if their domains are written out and equal.
    colour = alt.Color("survey:N", scale=alt.Scale(domain=list(unique)), title=None, legend=legend)
    dashes = [DASHES[n % len(DASHES)] for n in range(len(unique))]
    dash = alt.StrokeDash("survey:N", scale=alt.Scale(domain=list(unique), range=dashes), title=None, legend=legend)
    base = alt.Chart(rows).transform_filter("isValid(datum.mean)")
    measured = unit_title(card) if part == card.parts[0] else f"{card.title}, {part_title(part)}"
    axis = {"title": measured, "axis": value_axis(rows, card)}
    y = alt.Y("mean:Q", scale=scale, **axis)
    lines = base.mark_line(style="line").encode(x=x, y=y, color=colour, strokeDash=dash)
    tooltip = ["survey:N", "depth:Q", "mean:Q", "low:Q", "high:Q"]
    dots = base.mark_circle(style="reading", size=reading_size(rows))
    dots = dots.encode(x=x, y=y, color=colour, description="label:N", tooltip=tooltip)
    low = alt.Y("low:Q", scale=scale, **axis)
    band = base.mark_area(style="spread").encode(x=x, y=low, y2="high:Q", color=colour)
    layers = [band, lines, dots] if len(unique) == 2 else [lines, dots]
    chart = alt.layer(*layers).properties(width=width, height=height)
    if fit:
        chart = chart.properties(autosize=alt.AutoSizeParams(type="fit-x", contains="padding"))
    both = "both surveys" if len(unique) == 2 else f"{len(unique)} surveys"
    return chart.properties(title=chart_title(card, panel, both)) if title else chart


def difference_grid(
    first: pd.DataFrame,
    second: pd.DataFrame,
    card: Card,
    *,
    part: str | None = None,
    stack: str | None = None,
    site: str | None = None,
) -> alt.Chart:
    """Draw second minus first for each head that both have, in colours that diverge from 0."""
    panel = first_panel(first, card, stack, site)
    part = card.parts[0] if part is None else part
    sides = [head_rows(table, panel, part) for table in (first, second)]
    rows = sides[0].merge(sides[1], on=["layer", "head"], suffixes=("_before", "_after"))
    rows = rows[["layer", "head", "mean_before", "mean_after"]].set_axis(["layer", "head", "before", "after"], axis=1)
    rows = rows.assign(difference=rows["after"] - rows["before"])
    rows = rows[np.isfinite(rows["difference"])].reset_index(drop=True)
    if rows.empty:
        raise RefusalError(
            f"'{card.name}' has no head with a number in both surveys: draw it against depth, without heads=."
        )
    rows["label"] = [
        f"block {r.layer}, head {r.head}: {numeral(r.before)} → {numeral(r.after)}" for r in rows.itertuples()
    ]
    reach = float(rows["difference"].abs().max()) or 1.0
    x, y, step = grid_axes(rows)
    tooltip: list[Any] = [alt.Tooltip("layer:O", title="block"), alt.Tooltip("head:O")]
    tooltip += [alt.Tooltip(f"{name}:Q", format=".4~g") for name in ("before", "after", "difference")]
    colour = alt.Color(
        "difference:Q",
        scale=alt.Scale(domain=[-reach, 0, reach], range="diverging"),
        title=f"second minus first ({card.unit})",
        legend=alt.Legend(orient="bottom", gradientLength=180, gradientThickness=8),
    )
    what = f"difference of {part_title(part)}" if part != "value" else "difference of every head"
    return (
        alt.Chart(rows)
        .mark_rect()
        .encode(x=x.title("block"), y=y, color=colour, tooltip=tooltip, description="label:N")
        .properties(width=alt.Step(step), height=alt.Step(step), title=chart_title(card, panel, what))
    )


def block_ticks(depths: Iterable[float]) -> list[int]:
    """Return about eight whole numbers for the ticks of an axis."""
    known = list(depths)
    first, last = int(np.ceil(min(known))), int(np.floor(max(known)))
    return list(range(first, last + 1, max(1, -(-(last - first) // 8))))


def distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names; if some are equal, append a number to each."""
    if len(set(names)) == len(names):
        return tuple(names)
    ends = ("first", "second") if len(names) == 2 else tuple(map(str, range(1, len(names) + 1)))
    return tuple(f"{name} ({end})" for name, end in zip(names, ends, strict=True))


def chart(
    comparison: Comparison,
    measure: str | None = None,
    *,
    heads: bool = False,
    part: str | None = None,
    stack: str | None = None,
    site: str | None = None,
) -> Any:
    """Draw a line for every survey; with `heads`, the last survey minus the first, head by head.

    `measure` defaults to the measure of the worst finding that is new or got worse, else of the largest change.
    """
    if measure is None:
        measure, part, stack_and_site = _most_telling(comparison, heads, part)
        stack, site = stack or stack_and_site[0], site or stack_and_site[1]
    card, where = card_and_place(comparison.first, measure, stack, "stream" if site == "middle" else site)
    if heads:
        if card.scope == "stream":
            raise RefusalError(f"'{card.name}' has one number per block and none per head: leave heads= out.")
        return difference_grid(comparison.first.table(), comparison.second.table(), card, part=part, **where)
    tables = dict(zip(labels(comparison), (survey.table() for survey in comparison.surveys), strict=True))
    panel = (card.name, where["stack"], where["site"])
    sides = {name: table for name, table in tables.items() if panel in panels(table)}
    if len(sides) < 2:
        raise RefusalError(
            f"'{card.name}' was measured there in one survey only: name a measure that two surveys share."
        )
    return comparison_profile(list(sides.values()), card, names=list(sides), part=part, **where)


def _most_telling(
    comparison: Comparison, heads: bool, part: str | None
) -> tuple[str | None, str | None, tuple[str | None, str | None]]:
    """Return measure, part and place of the first finding that is new or worse, else of the largest change."""
    for pair in comparison.regressions("note"):
        card = comparison.first.cards.get(str(pair.measure))
        if card and (not heads or card.scope != "stream") and (pair.stack in comparison.first.stacks):
            shared = [c for c in comparison.changes if (c.measure, c.stack) == (card.name, pair.stack)]
            if shared:
                return card.name, part, (pair.stack, pair.site)
    for top in comparison.changes:
        if top.head is not None or not heads:
            return top.measure, part or top.part, (top.stack, top.site)
    return None, part, (None, None)
