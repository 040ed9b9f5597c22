"""Charts of a `PathReport`, and the rows that they draw.

    length_chart(report)           the target by length, as bars from zero
    reconstruction_chart(report)   probability of the target and loss with only the lengths up to k
    value_grid(report)             Shapley value of every head
    head_length_map(report)        contributions of paths through the most valuable heads, by length
    player_chart(report)           heads and MLPs of each block as players of one game
    chart(report)                  all of them in one picture

`width` is in pixels and includes axes and legends. With `width` a chart has no title.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

import altair as alt
import pandas as pd

from attnscope.commands.paths.record import PathReport
from attnscope.commands.paths.vocabulary import exactly, head_name, seen_lengths, signed, visible
from attnscope.core.words import numeral
from attnscope.reports.theme import tick_labels

MOST_HEADS = 14  # rows of the map of heads by length
SOURCES = {"stream": "from the input", "constants": "from constants"}
WIDTH, HEIGHT = 340, 190
AXIS = 46  # pixels for numbers beside an axis
AROUND = AXIS + 34  # pixels beside a panel: its axis with a title, and half of the last label
HARD_SPACE = "\N{NO-BREAK SPACE}"
LONGEST_TITLE = 44  # letters of a line under an axis
NUMBER = 62  # pixels of a number at the end of a bar
BAR = 22  # pixels from one bar to the next
MOST_BARS = 24  # with a label each


def length_rows(report: PathReport) -> list[dict[str, Any]]:
    """Return a row for each length and source. Skip a source that is zero everywhere, unless both are."""
    kinds = [key for key in SOURCES if any(getattr(row, key) for row in report.lengths)] or [next(iter(SOURCES))]
    return [
        {
            "length": row.length,
            "source": SOURCES[key],
            "value": (value := getattr(row, key)),
            "label": f"paths through {exactly(row.length)}, {SOURCES[key]}: {signed(value)}",
        }
        for row in report.lengths[: seen_lengths(report)]
        for key in kinds
    ]


def reconstruction_rows(report: PathReport) -> list[dict[str, Any]]:
    """Return rows for each length: the probability of the target (or the distance from the output), and the loss."""
    rows = []
    for row in report.lengths[: seen_lengths(report)]:
        prediction = row.up_to
        chance = prediction.target_probability
        quantity = "distance from the model's own output" if chance is None else "probability of the target"
        value = prediction.distance if chance is None else chance
        words = f", says '{prediction.predicted}'" if prediction.predicted is not None else ""
        label = f"lengths up to {row.length}: {quantity} {numeral(value)}{words}"
        rows.append({"length": row.length, "quantity": quantity, "value": value, "label": label})
        if prediction.loss is not None:
            label = f"lengths up to {row.length}: next-token loss {numeral(prediction.loss)}"
            rows.append({"length": row.length, "quantity": "next-token loss", "value": prediction.loss, "label": label})
    return rows


def value_rows(report: PathReport) -> list[dict[str, Any]]:
    return [
        {"block": block, "head": head, "value": value, "label": f"{head_name(block, head)}: {signed(value)}"}
        for block, heads in enumerate(report.head_values)
        for head, value in enumerate(heads)
    ]


def head_length_rows(report: PathReport) -> list[dict[str, Any]]:
    """Return the contribution of paths of each length through the most valuable heads, in order of depth."""
    end = min(max(seen_lengths(report), 3), len(report.lengths))
    places = [(block, head) for block, heads in enumerate(report.head_values) for head in range(len(heads))]
    most = sorted(places, key=lambda place: -abs(report.head_values[place[0]][place[1]]))[:MOST_HEADS]
    return [
        {
            "head": head_name(block, head),
            "length": length,
            "value": (value := report.head_lengths[block][head][length]),
            "label": f"{head_name(block, head)}, paths through {exactly(length)}: {signed(value)}",
        }
        for block, head in sorted(most)
        for length in range(1, end)
    ]


def player_rows(report: PathReport) -> list[dict[str, Any]]:
    players = report.players
    if players is None:
        return []
    rows = []
    for kind, blocks in (("heads", players.heads), ("MLP", players.mlps)):
        for block, values in enumerate(blocks):
            if values:
                total = sum(values)
                label = f"{kind} of block {block}: {signed(total)}"
                rows.append({"block": block, "player": kind, "value": total, "label": label})
    return rows


def length_chart(report: PathReport, *, width: int | None = None) -> alt.LayerChart:
    rows = pd.DataFrame(length_rows(report))
    kinds = list(dict.fromkeys(rows["source"]))
    tooltip = [alt.Tooltip("length:O"), alt.Tooltip("source:N"), alt.Tooltip("value:Q", format=".4~g")]
    one = len(kinds) == 1
    encoded = {"tooltip": tooltip, "color": _series("source", kinds)}
    room = width or WIDTH + AROUND
    chart = _bars(rows, wrapped(report.target), width=room, numbers=one, **encoded)
    return _sized(chart, width, "Share by length", f"sums to {numeral(report.value)}")


def _bars(rows: pd.DataFrame, values: str | list[str], *, width: int, numbers: bool, **encoded: Any) -> alt.LayerChart:
    """Draw a bar for each length, from zero to either side, stacked by sign. `numbers` writes values at their ends."""
    low, high = _reach(rows)
    free = width - AROUND - NUMBER * ((low < 0) + (high > 0))
    room = (high - low) * NUMBER / free if numbers else 0.0
    scale = alt.Scale(domain=[low - room * (low < 0), high + room * (high > 0)], nice=False)
    places = list(dict.fromkeys(rows["length"]))
    every = -(-len(places) // MOST_BARS)
    y = alt.Y("length:O", title="heads passed", axis=alt.Axis(values=places[::every], grid=False))
    axis = alt.Axis(tickCount=5, grid=True, **tick_labels(rows["value"].astype(float)))
    x = alt.X("value:Q", title=values, scale=scale, axis=axis)
    layers: list[Any] = [alt.Chart(rows).mark_bar().encode(x=x, y=y, description="label:N", **encoded)]
    layers.append(_zero().encode(x=x))
    if numbers:
        written = rows.assign(number=rows["value"].map(signed))
        for some, side in ((written[rows["value"] >= 0], 1), (written[rows["value"] < 0], -1)):
            text = alt.Chart(some).mark_text(style="number", align="left" if side > 0 else "right", dx=4 * side)
            layers += [text.encode(x=x, y=y, text="number:N")] if len(some) else []
    return alt.layer(*layers).properties(width=WIDTH, height=BAR * max(4, min(len(places), MOST_BARS)))


def _zero() -> alt.Chart:
    return alt.Chart(pd.DataFrame([{"value": 0.0}])).mark_rule(style="others", opacity=0.8)


def _reach(rows: pd.DataFrame) -> tuple[float, float]:
    """Return the range of stacked bars, including zero; (0, 1) if all are zero."""
    sums = [rows[rows["value"] * side > 0].groupby("length")["value"].sum() for side in (-1, 1)]
    low, high = min([0.0, *sums[0]]), max([0.0, *sums[1]])
    return (low, high) if high > low else (0.0, 1.0)


def reconstruction_chart(report: PathReport, *, width: int | None = None) -> alt.LayerChart | alt.VConcatChart:
    rows = pd.DataFrame(reconstruction_rows(report))
    own = report.lengths[-1].up_to
    panels = []
    names = list(dict.fromkeys(rows["quantity"]))
    for name in names:
        some = rows[rows["quantity"] == name]
        final = own.loss if name == "next-token loss" else own.target_probability
        height = HEIGHT if len(names) == 1 else (HEIGHT - 50) // 2
        panel = _reached(some, name, own.distance if final is None else final)
        panels.append(panel.properties(width=WIDTH if width is None else width - AROUND, height=height))
    chart = panels[0] if len(panels) == 1 else alt.vconcat(*panels, spacing=14)
    return _titled(chart, "When only lengths up to k count", "dashed: the whole model") if width is None else chart


def _reached(rows: pd.DataFrame, name: str, final: float) -> alt.LayerChart:
    last = int(rows["length"].max())
    ticks = list(range(0, last + 1, max(1, -(-(last + 1) // 16))))
    x = alt.X("length:O", title="k, longest paths that count", axis=alt.Axis(labelAngle=0, values=ticks))
    # Titles are short, because long titles of two stacked panels would overlap.
    title = {"probability of the target": "p(target)", "next-token loss": "loss"}.get(name, "distance")
    labels = tick_labels([*rows["value"].astype(float), final])
    axis = alt.Axis(tickCount=4, minExtent=AXIS, maxExtent=AXIS, **labels)
    y = alt.Y("value:Q", title=title, scale=alt.Scale(zero=name != "next-token loss", nice=True), axis=axis)
    base = alt.Chart(rows)
    whole = alt.Chart(pd.DataFrame([{"value": final}])).mark_rule(style="others", strokeDash=[4, 3]).encode(y="value:Q")
    tooltip = [alt.Tooltip("length:O", title="k"), alt.Tooltip("value:Q", title=name, format=".4~g")]
    return alt.layer(
        whole,
        base.mark_line(style="line").encode(x=x, y=y),
        base.mark_circle(style="reading", size=36).encode(x=x, y=y, description="label:N", tooltip=tooltip),
    )


def value_grid(report: PathReport) -> alt.Chart:
    rows = pd.DataFrame(value_rows(report))
    tooltip = [alt.Tooltip("block:O"), alt.Tooltip("head:O"), alt.Tooltip("value:Q", format=".4~g")]
    chart = _grid(rows, "block", "head", side=720).encode(tooltip=tooltip)
    return _titled(chart, "What every head is worth", "Shapley value of heads alone, in units of the target")


def head_length_map(report: PathReport) -> alt.Chart:
    rows = pd.DataFrame(head_length_rows(report))
    tooltip = [alt.Tooltip("head:N"), alt.Tooltip("length:O"), alt.Tooltip("value:Q", format=".4~g")]
    chart = _grid(rows, "length", "head", side=WIDTH).encode(tooltip=tooltip)
    heading = "Heads by length" if rows["head"].nunique() < MOST_HEADS else f"The {MOST_HEADS} largest heads, by length"
    return _titled(chart, heading, "all paths of that length through the head, added up")


def _grid(rows: pd.DataFrame, across: str, down: str, *, side: int) -> alt.Chart:
    """Draw a cell for each place, as wide as `side` pixels allow."""
    columns, lines = (list(dict.fromkeys(rows[name])) for name in (across, down))
    wide = max(6, min(72, side // len(columns)))
    high = max(6, min(wide, 24, 720 // len(lines)))
    bare: dict[str, Any] = {"ticks": False, "domain": False, "grid": False, "labelAngle": 0}
    names = {"length": "heads passed"}
    ticks = columns[:: max(1, -(-20 // wide))], lines[:: max(1, -(-14 // high))]  # labels must not overlap
    x = alt.X(f"{across}:O", title=names.get(across, across), axis=alt.Axis(values=ticks[0], **bare))
    y = alt.Y(f"{down}:O", title=down, sort=lines, axis=alt.Axis(values=ticks[1], **bare))
    chart = alt.Chart(rows).mark_rect().encode(x=x, y=y, color=_signed(rows), description="label:N")
    return chart.properties(width=alt.Step(wide), height=alt.Step(high))


def player_chart(report: PathReport, *, width: int | None = None) -> alt.LayerChart:
    rows = pd.DataFrame(player_rows(report))
    tooltip = [alt.Tooltip("block:O"), alt.Tooltip("player:N"), alt.Tooltip("value:Q", format=".4~g")]
    colour = _series("player", list(dict.fromkeys(rows["player"])))
    x = alt.X("block:O", title="block", axis=alt.Axis(labelAngle=0, labelOverlap=True, grid=False))
    y = alt.Y("value:Q", title="Shapley value", axis=alt.Axis(**tick_labels(rows["value"].astype(float))))
    bars = alt.Chart(rows).mark_bar().encode(x=x, y=y, color=colour, tooltip=tooltip, description="label:N")
    chart = alt.layer(bars, _zero().encode(y="value:Q")).properties(width=WIDTH, height=HEIGHT)
    return _sized(chart, width, "Heads and MLPs as players of one game", "a block's heads together")


def chart(report: PathReport) -> alt.VConcatChart:
    """Draw all charts in one picture."""
    above = alt.hconcat(length_chart(report), reconstruction_chart(report), spacing=40)
    below: list[Any] = [head_length_map(report), *([player_chart(report)] if player_rows(report) else [])]
    beside = alt.hconcat(*below, spacing=40).resolve_scale(color="independent")
    rows = [value_grid(report), above, beside]
    text = report.text if len(report.text) <= 90 else report.text[:87] + "..."
    heading = alt.TitleParams(f"{report.model}: {report.target}", subtitle=[text] if text else [], offset=14)
    return alt.vconcat(*rows, spacing=30).resolve_scale(color="independent").properties(title=heading)


def _sized(chart: Any, width: int | None, text: str, subtitle: str) -> Any:
    if width is None:
        return _titled(chart, text, subtitle)
    return chart.properties(width=width, autosize=alt.AutoSizeParams(type="fit-x", contains="padding"))


def _titled(chart: Any, text: str, subtitle: str) -> Any:
    return chart.properties(title=alt.TitleParams(text, subtitle=[subtitle], fontSize=13, offset=8))


def _series(name: str, names: list[str]) -> alt.Color:
    """Return colours for these names. The first two colours are skipped, because they stand for signs elsewhere."""
    legend = alt.Legend(orient="top", title=None, values=names) if len(names) > 1 else None
    scale = alt.Scale(domain=["subtracts", "adds", *names])
    return alt.Color(f"{name}:N", sort=names, scale=scale, title=None, legend=legend)


def _signed(rows: pd.DataFrame) -> alt.Color:
    """Return a diverging scale with zero in the middle."""
    reach = float(rows["value"].abs().max()) or 1.0
    scale = alt.Scale(domain=[-reach, reach], domainMid=0, nice=False, range="diverging")
    legend = alt.Legend(orient="bottom", gradientLength=150, gradientThickness=8, tickCount=3)
    return alt.Color("value:Q", scale=scale, title=None, legend=legend)


def wrapped(target: str) -> str | list[str]:
    """Return the name of a target, broken into lines that fit below the axis."""
    target = visible(target)
    whole = re.sub(r"'[^']*'", lambda word: word[0].replace(" ", HARD_SPACE), target)  # quoted words are not broken
    lines = textwrap.wrap(whole, LONGEST_TITLE, break_on_hyphens=False)
    if len(lines) < 2:
        return target
    even = textwrap.wrap(whole, len(target) // len(lines) + 5, break_on_hyphens=False)  # avoids a last line of one word
    return [line.replace(HARD_SPACE, " ") for line in (even if len(even) == len(lines) else lines)]
