"""The figure of an experiment: lines with bands, bars, tracks of points in panels, or a table.

    chart = experiment_figure(figure)       # figure: attnscope.core.experiment.Figure, plain data

Dashed rows are references. On an axis over many powers of ten, a difference of 10% is thinner than a line, so a
logarithmic figure with references repeats its panels on a linear axis.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import altair as alt
import pandas as pd

from attnscope.core.errors import RefusalError
from attnscope.core.experiment import Figure, Point
from attnscope.core.words import numeral
from attnscope.reports.theme import LETTER, label_room, power_axis, tick_labels

ROW, LINE = 22, 13  # heights in pixels of a row, and of a line of a heading
LINES = 3  # most lines in a heading
WIDEST = 110  # largest width of a column, in pixels
READABLE: dict[str, Any] = {"description": "label:N", "tooltip": [{"field": "label", "type": "nominal", "title": " "}]}
BREAK = "¦"  # separates the lines of a heading: Vega would draw a line feed as a character


def number_table(figure: Figure, *, title: bool = True, width: int = 1000) -> alt.LayerChart:
    """Draw numbers as text: a row for every x, a column for every series, a dash for a missing number.

    Nothing is drawn to scale, because columns have different units. Tooltips give the spread over seeds. `width`
    includes the names of rows. Headings wrap in narrow columns.
    """
    names, columns = (list(dict.fromkeys(str(getattr(row, of)) for row in figure.rows)) for of in ("x", "series"))
    names_room = min(label_room(names), width // 2)
    side = min(WIDEST * len(columns), width - names_room)
    letters = max(4, math.floor(side / len(columns) / LETTER))
    heading = {column: _broken(column, letters) for column in columns}
    lines = max(text.count(BREAK) for text in heading.values())
    rows = pd.DataFrame(
        [
            {
                "row": str(point.x),
                "column": heading[point.series],
                "text": numeral(point.y) if math.isfinite(point.y) else "–",
                "label": f"{point.x}, {point.series}: {_spread(point.y, point.low, point.high)}",
            }
            for point in figure.rows
        ]
    )
    x = alt.X(
        "column:N",
        sort=list(heading.values()),
        title=None,
        scale=alt.Scale(type="band"),
        axis=alt.Axis(
            orient="top",
            labelAngle=0,
            labelExpr=f"split(datum.label, '{BREAK}')",
            labelLimit=0,
            labelPadding=4 + LINE * lines,  # further lines are below the first
            ticks=False,
        ),
    )
    between = alt.Axis(labelLimit=names_room, grid=True, tickBand="extent")  # lines between rows, not through them
    y = alt.Y("row:N", sort=names, title=None, scale=alt.Scale(type="band"), axis=between)
    chart = alt.layer(alt.Chart(rows).mark_text(style="number").encode(x=x, y=y, text="text:N", **READABLE))
    chart = chart.properties(width=side, height=ROW * len(names))
    return chart.properties(title=alt.TitleParams(figure.title)) if title else chart


def _spread(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return "no number"
    return numeral(value) + (f" ({numeral(low)} to {numeral(high)})" if low < high else "")


def _broken(heading: str, letters: int) -> str:
    """Wrap words to `letters` characters per line, in at most `LINES` lines."""
    lines: list[str] = []
    for word in heading.split():
        fits = bool(lines) and (len(lines[-1]) + 1 + len(word) <= letters or len(lines) == LINES)
        lines = [*lines[:-1], f"{lines[-1]} {word}"] if fits else [*lines, word]
    return BREAK.join(lines)


COLUMNS = {"curves": 3, "bars": 2, "tracks": 4}
NARROWEST = {"curves": 230, "bars": 300, "tracks": 140}
"""Least width in pixels of a panel with its axis: in a narrower figure, fewer panels are side by side."""
AXIS, SPACING, LEGEND = 56, 28, 240  # widths in pixels; a legend may be narrower
NARROW = 480  # in pixels; a narrower chart has its legend above it
FAR = 1e3  # ratio of the largest to the smallest y; a longer logarithmic axis hides differences that a linear one shows
DASHES = [5, 3]


def experiment_figure(
    figure: Figure, *, title: bool = True, width: int = 1000
) -> alt.Chart | alt.LayerChart | alt.ConcatChart:
    """Draw a figure; `width` in pixels includes axes and legend."""
    rows = _rows(figure)
    if rows.empty:
        raise RefusalError(f"The figure '{figure.name}' has no finite number to draw.")
    if figure.kind == "table":
        return number_table(figure, title=title, width=width)
    names = list(dict.fromkeys(rows["series"]))
    panels = list(dict.fromkeys(rows["panel"]))
    # Panels without a common series have one legend each, so that a colour may be used again in another panel.
    apart = len(panels) > 1 and rows.groupby("series")["panel"].nunique().max() == 1
    drawn_on = _axes(rows, figure)
    legend = "bottom" if apart else "right" if width >= NARROW else "top"
    room = width - (_legend_room(names) if legend == "right" else 0)
    columns, side = _shape(figure.kind, len(panels) if len(panels) > 1 else len(drawn_on), room)
    blocks: list[Any] = []
    for drawn in drawn_on:
        y_scale, parts = _scale(rows, drawn), []
        for panel in panels:
            some = rows[rows["panel"] == panel]
            own = list(dict.fromkeys(some["series"])) if apart else names
            parts.append(_Panel(some, drawn, own, y_scale, _colour(own, legend, side), side).chart(str(panel)))
        block = parts[0] if len(parts) == 1 else alt.concat(*parts, columns=columns, spacing=SPACING)
        blocks.append(block.resolve_scale(color="independent") if apart else block)
    # The linear copy of a single panel is beside it if there is room; copies of several panels are below them.
    below = 1 if len(panels) > 1 else columns
    chart = blocks[0] if len(blocks) == 1 else alt.concat(*blocks, columns=below, spacing=SPACING)
    chart = chart.resolve_scale(color="independent") if apart else chart
    return chart.properties(title=alt.TitleParams(figure.title)) if title else chart


def _shape(kind: str, panels: int, room: int) -> tuple[int, int]:
    """Return how many panels are side by side, and how wide each is inside its axes."""
    columns = max(1, min(panels, COLUMNS[kind], (room + SPACING) // (NARROWEST[kind] + SPACING)))
    return columns, (room - SPACING * (columns - 1)) // columns - AXIS


def _legend_room(names: list[str]) -> int:
    return 0 if len(names) == 1 else min(LEGEND, label_room(names) + 24)


def _axes(rows: pd.DataFrame, figure: Figure) -> list[Figure]:
    """Return the figure, and a copy with a linear axis if its references cannot be compared on the logarithmic one."""
    if not figure.log or figure.kind != "curves" or not rows["dashed"].any():
        return [figure]
    far = float(rows["y"].max()) > FAR * float(rows["y"].min())
    return [figure, replace(figure, log=False, y=f"{figure.y}, linear")] if far else [figure]


def _rows(figure: Figure) -> pd.DataFrame:
    """Return points with a finite y. Bands that are not finite are replaced by y; on a logarithmic axis, values at or
    below 0 are drawn at a floor, a third of the smallest positive y."""
    points = [point for point in figure.rows if math.isfinite(point.y)]
    rows = pd.DataFrame([vars(point) for point in points])
    if rows.empty:
        return rows
    rows["low"] = [point.low if math.isfinite(point.low) else point.y for point in points]
    rows["high"] = [point.high if math.isfinite(point.high) else point.y for point in points]
    if figure.log:
        positive = rows.loc[rows["y"] > 0, "y"]
        floor = float(positive.min()) / 3 if len(positive) else 1e-300
        for column in ("y", "low", "high"):
            rows[column] = rows[column].astype(float).clip(lower=floor)
    rows["order"] = range(len(rows))
    rows["label"] = [_label(point, figure) for point in points]
    return rows


def _label(point: Point, figure: Figure) -> str:
    """Return the tooltip of a point. It gives the true numbers, even if they are drawn on the floor of an axis."""
    where = ", ".join(filter(None, (point.panel, point.series)))
    if figure.kind == "tracks":
        return f"{where}: {figure.x} {numeral(float(point.x))}, {figure.y} {numeral(point.y)}"
    x = point.x if isinstance(point.x, str) else f"{figure.x} {numeral(float(point.x))}"
    band = f" ({numeral(point.low)} to {numeral(point.high)})" if point.low < point.high else ""
    return f"{where}{' (dashed)' * point.dashed}, {x}: {numeral(point.y)}{band}"


def _scale(rows: pd.DataFrame, figure: Figure) -> alt.Scale:
    """Return one scale for all panels, so that they can be compared."""
    low, high = float(rows["low"].min()), float(rows["high"].max())
    if figure.log:
        return alt.Scale(type="log", domain=[low / 1.5, high * 1.5], nice=False)
    if figure.kind == "tracks":
        reach = max(abs(low), abs(high), float(rows["x"].abs().max())) * 1.05
        return alt.Scale(domain=[-reach, reach], nice=False)
    if figure.kind == "bars":
        return alt.Scale(domain=[min(low, 0.0), max(high, 0.0)], nice=True)
    zero = low < 0.3 * high
    return alt.Scale(zero=zero, domain=[0 if zero and low >= 0 else low, high], nice=True)


def _colour(names: list[str], legend: str, side: int) -> dict[str, Any]:
    if len(names) == 1:
        return {}
    if legend == "right":
        where = alt.Legend(labelLimit=LEGEND - 24)
    else:
        columns = max(1, (side + AXIS) // (label_room(names) + 20))
        where = alt.Legend(orient=legend, direction="vertical", columns=columns, labelLimit=side)
    return {"color": alt.Color("series:N", sort=names, scale=alt.Scale(domain=names), title=None, legend=where)}


@dataclass(frozen=True)
class _Panel:
    """One panel: its rows, the names of its series, and the scale and colours that all panels share."""

    rows: pd.DataFrame
    figure: Figure
    names: list[str]
    scale: alt.Scale
    colour: dict[str, Any]
    side: int  # pixels inside the axes

    def chart(self, title: str) -> Any:
        made = {"curves": self._curves, "bars": self._bars, "tracks": self._tracks}[self.figure.kind]()
        return made.properties(title=alt.TitleParams(title, fontSize=12, offset=6)) if title else made

    def _y(self) -> alt.Y:
        if self.figure.log:
            axis = alt.Axis(**power_axis(*self.scale["domain"]))
        else:
            axis = alt.Axis(tickCount=6, **tick_labels(self.rows["high"].astype(float)))
        return alt.Y("y:Q", title=self.figure.y, scale=self.scale, axis=axis)

    def _curves(self) -> alt.LayerChart:
        rows, figure, colour = self.rows, self.figure, self.colour
        whole = all(float(x).is_integer() for x in rows["x"])
        logarithmic = alt.Scale(type="log", base=2 if whole else 10, nice=False)
        axis = alt.Axis(
            tickMinStep=1 if whole else 0,
            tickCount=min(8, self.side // 40),
            labelOverlap=True,
            format=",d" if whole else "~g",
        )
        linear = alt.Scale(zero=False, nice=False, padding=6)
        x, y = alt.X("x:Q", title=figure.x, scale=logarithmic if figure.log_x else linear, axis=axis), self._y()
        base = alt.Chart(rows)
        solid, dashed = base.transform_filter("!datum.dashed"), base.transform_filter("datum.dashed")
        # rows without a band are left out, because they would interrupt the band
        banded = base.transform_filter("!datum.dashed || datum.low < datum.high")
        layers = [
            banded.mark_area(style="spread").encode(
                x=x,
                y=alt.Y("low:Q", scale=self.scale, title=figure.y),
                y2="high:Q",
                detail="dashed:N",  # a solid and a dashed line of one colour have separate bands
                **colour,
            ),
            solid.mark_line(style="line").encode(x=x, y=y, **colour),
            solid.mark_circle(style="reading", size=26).encode(x=x, y=y, **READABLE, **colour),
        ]
        if rows["dashed"].any():
            layers.append(dashed.mark_line(strokeDash=DASHES, strokeWidth=2.2).encode(x=x, y=y, **colour))
            # If a dashed line coincides with the solid line of its colour, only its marks can be seen.
            twin = rows["dashed"] & rows["series"].isin(rows.loc[~rows["dashed"], "series"])
            if twin.any():
                marks = alt.Chart(rows[twin]).mark_point(shape="diamond", size=44, strokeWidth=1.4, style="hollow")
                layers.append(marks.encode(x=x, y=y, **READABLE, **colour))
        return alt.layer(*layers).properties(width=self.side, height=max(190, min(300, self.side // 3)))

    def _bars(self) -> alt.LayerChart:
        order = list(dict.fromkeys(self.rows["x"]))
        slanted = max(label_room([str(name)]) for name in order) > self.side // len(order)
        axis = alt.Axis(labelAngle=-40 if slanted else 0, labelLimit=160)
        x = alt.X("x:N", sort=order, title=self.figure.x, axis=axis)
        low = alt.Y("low:Q", scale=self.scale, title=self.figure.y)
        beside = {"xOffset": alt.XOffset("series:N", sort=self.names)} if len(self.names) > 1 else {}
        # bars begin at 0, so that their length shows the number
        floor = self.scale["domain"][0] if self.figure.log else 0.0
        base = alt.Chart(self.rows).transform_calculate(floor=str(floor))
        bars = base.mark_bar(opacity=0.85).encode(x=x, y=self._y(), y2="floor:Q", **READABLE, **beside, **self.colour)
        spread = base.mark_rule(style="number", strokeWidth=1.5).encode(x=x, y=low, y2="high:Q", **beside)
        return alt.layer(bars, spread).properties(width=self.side, height=220)

    def _tracks(self) -> alt.LayerChart:
        rows, axis = self.rows, alt.Axis(tickCount=4)
        square = alt.Scale(domain=self.scale["domain"], nice=False)
        x = alt.X("x:Q", title=self.figure.x, scale=square, axis=axis)
        y = alt.Y("y:Q", title=self.figure.y, scale=self.scale, axis=axis)
        base = alt.Chart(rows)
        solid, dashed = base.transform_filter("!datum.dashed"), base.transform_filter("datum.dashed")
        line = {"x": x, "y": y, "order": alt.Order("order:Q"), **self.colour}
        end = {"x": x, "y": y, **READABLE, **self.colour}
        tracks = rows[~rows["dashed"]].groupby("series", sort=False)
        first, last = _ends(tracks.head(1), "begins at"), _ends(tracks.tail(1), "ends at")
        return alt.layer(
            dashed.mark_line(strokeDash=[2, 3], strokeWidth=1, clip=True).encode(**line),
            solid.mark_line(style="line", clip=True).encode(**line),
            alt.Chart(first).mark_point(size=30, clip=True).encode(**end),
            alt.Chart(last).mark_circle(size=70, opacity=1, clip=True).encode(**end),
        ).properties(width=self.side, height=self.side)


def _ends(rows: pd.DataFrame, word: str) -> pd.DataFrame:
    return rows.assign(label=[label.replace(": ", f" {word} ", 1) for label in rows["label"]])
