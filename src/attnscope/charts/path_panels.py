"""What paths of each length contribute, drawn: all charts take a `PathReport`.

    length_chart(report)           the target by length, signed bars: from the input, from constants
    reconstruction_chart(report)   what the model says when only lengths up to k count: probability, and loss
    value_grid(report)             Shapley value of every head, layers from left to right, a colour for each sign
    head_length_map(report)        what paths through the most valuable heads contribute, by length
    player_chart(report)           heads and MLPs of each layer as players of one game
    path_panels(report)            all of them in one picture

Where lengths are many, those beyond the last one that matters are left out of axes: 30 layers have paths of length 30,
and nobody sees 1e-26.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from attnscope.charts.axes import tick_labels
from attnscope.charts.head_grid import grid_axes
from attnscope.core.numerals import numeral
from attnscope.records.paths import PathReport

WIDTH, HEIGHT = 340, 190
HARD_SPACE = "\N{NO-BREAK SPACE}"
LONGEST_TITLE = 30  # letters of a line beside an axis
MOST_HEADS = 14  # rows of the map of heads by length
FEW_LENGTHS = 13  # twelve layers: so many have room, and all are shown
NEGLIGIBLE = 1e-4  # of the largest: not a pixel high
SHARE = 0.01  # of what tells tokens apart
SOURCES = {"stream": "from the input", "constants": "from constants"}


def seen_lengths(report: PathReport) -> int:
    """Lengths that are drawn: all where they are few, else up to the last that could be seen in any chart."""
    if len(report.lengths) <= FEW_LENGTHS:
        return len(report.lengths)
    values = [max(abs(row.stream), abs(row.constants)) for row in report.lengths]
    distances = [row.up_to.distance for row in report.lengths]
    last_value = _last(values, NEGLIGIBLE * 10 * max(values, default=0.0))
    settled = next((k for k, _ in enumerate(distances) if all(d < 1e-3 for d in distances[k:])), len(distances) - 1)
    last_share = _last([abs(row.residual_share or 0.0) for row in report.lengths], SHARE)
    return min(len(values), max(last_value, settled, last_share, 1) + 1)


def _last(values: Sequence[float], threshold: float) -> int:
    return max((k for k, value in enumerate(values) if value > threshold), default=0)


def length_rows(report: PathReport) -> list[dict[str, Any]]:
    """One row per length and source that has anything."""
    few = report.lengths[: seen_lengths(report)]
    # A model whose weights are all zero has nothing anywhere: its bars are those of the first source, at zero.
    kinds = [key for key in SOURCES if any(getattr(row, key) for row in report.lengths)] or [next(iter(SOURCES))]
    return [
        {
            "length": row.length,
            "source": SOURCES[key],
            "value": (value := getattr(row, key)),
            "label": f"paths through {exactly(row.length)}, {SOURCES[key]}: {numeral(value)}",
        }
        for row in few
        for key in kinds
    ]


def length_chart(report: PathReport, *, title: bool = True) -> alt.LayerChart:
    rows = pd.DataFrame(length_rows(report))
    kinds = list(dict.fromkeys(rows["source"]))
    colour = {} if len(kinds) == 1 else {"color": _series("source", kinds)}
    bars = (
        alt.Chart(rows)
        .mark_bar()
        .encode(
            x=_length_axis(rows["length"]),
            y=_value_axis(rows, wrapped(report.target)),
            description="label:N",
            tooltip=[alt.Tooltip("length:O"), alt.Tooltip("source:N"), alt.Tooltip("value:Q", format=".4~g")],
            **colour,
        )
    )
    chart = alt.layer(bars, _zero()).properties(width=WIDTH, height=HEIGHT)
    return _titled(chart, "Share by length", f"sums to {numeral(report.value)}", title)


def reconstruction_rows(report: PathReport) -> list[dict[str, Any]]:
    """By length: the probability of the target, or how near the output is, when only lengths up to it count."""
    few = report.lengths[: seen_lengths(report)]
    rows = []
    for row in few:
        said = row.up_to
        chance = said.target_probability
        quantity = "distance from the model's own output" if chance is None else "probability of the target"
        value = said.distance if chance is None else chance
        words = f", says '{said.predicted}'" if said.predicted is not None else ""
        label = f"lengths up to {row.length}: {quantity} {numeral(value)}{words}"
        rows.append({"length": row.length, "quantity": quantity, "value": value, "label": label})
        if said.loss is not None:
            label = f"lengths up to {row.length}: next-token loss {numeral(said.loss)}"
            rows.append({"length": row.length, "quantity": "next-token loss", "value": said.loss, "label": label})
    return rows


def reconstruction_chart(report: PathReport, *, title: bool = True) -> alt.LayerChart | alt.VConcatChart:
    rows = pd.DataFrame(reconstruction_rows(report))
    own = report.lengths[-1].up_to
    panels = []
    names = list(dict.fromkeys(rows["quantity"]))
    for name in names:
        some = rows[rows["quantity"] == name]
        final = own.loss if name == "next-token loss" else own.target_probability
        panels.append(
            _reached(
                some, name, own.distance if final is None else final, HEIGHT if len(names) == 1 else (HEIGHT - 50) // 2
            )
        )
    chart = panels[0] if len(panels) == 1 else alt.vconcat(*panels, spacing=14)
    return _titled(chart, "When only lengths up to k count", "dashed: the whole model", title)


def _reached(rows: pd.DataFrame, name: str, final: float, height: int) -> alt.LayerChart:
    x = _length_axis(rows["length"], "k, longest paths that count")
    zero = name != "next-token loss"
    # Axis titles of two stacked panels are short, or they run into each other.
    title = {"probability of the target": "p(target)", "next-token loss": "loss"}.get(name, "distance")
    y = alt.Y(
        "value:Q",
        title=title,
        scale=alt.Scale(zero=zero, nice=True),
        axis=alt.Axis(tickCount=4, **tick_labels([*rows["value"].astype(float), final])),
    )
    base = alt.Chart(rows)
    whole = alt.Chart(pd.DataFrame([{"value": final}])).mark_rule(style="others", strokeDash=[4, 3]).encode(y="value:Q")
    tooltip = [alt.Tooltip("length:O", title="k"), alt.Tooltip("value:Q", title=name, format=".4~g")]
    return alt.layer(
        whole,
        base.mark_line(style="line").encode(x=x, y=y),
        base.mark_circle(style="reading", size=36).encode(x=x, y=y, description="label:N", tooltip=tooltip),
    ).properties(width=WIDTH, height=height)


def value_rows(report: PathReport) -> list[dict[str, Any]]:
    return [
        {"layer": layer, "head": head, "value": value, "label": f"head {head} of layer {layer}: {numeral(value)}"}
        for layer, heads in enumerate(report.head_values)
        for head, value in enumerate(heads)
    ]


def value_grid(report: PathReport, *, title: bool = True) -> alt.Chart:
    rows = pd.DataFrame(value_rows(report))
    x, y, step = grid_axes(rows)
    tooltip = [alt.Tooltip("layer:O"), alt.Tooltip("head:O"), alt.Tooltip("value:Q", format=".4~g")]
    chart = alt.Chart(rows).mark_rect().encode(x=x, y=y, color=_signed(rows), tooltip=tooltip, description="label:N")
    chart = chart.properties(width=alt.Step(step), height=alt.Step(step))
    return _titled(chart, "What every head is worth", "Shapley value, in units of the target", title)


def head_length_rows(report: PathReport) -> list[dict[str, Any]]:
    """What paths of each length through a head contribute, for the heads that are worth most, in order of depth."""
    shown = min(max(seen_lengths(report), 3), len(report.lengths))
    places = [(layer, head) for layer, heads in enumerate(report.head_values) for head in range(len(heads))]
    most = sorted(places, key=lambda place: -abs(report.head_values[place[0]][place[1]]))[:MOST_HEADS]
    return [
        {
            "head": f"L{layer} H{head}",
            "length": length,
            "value": (value := report.head_lengths[layer][head][length]),
            "label": f"head {head} of layer {layer}, paths through {exactly(length)}: {numeral(value)}",
        }
        for layer, head in sorted(most)
        for length in range(1, shown)
    ]


def head_length_map(report: PathReport, *, title: bool = True) -> alt.Chart:
    rows = pd.DataFrame(head_length_rows(report))
    bare: dict[str, Any] = {"ticks": False, "domain": False, "grid": False}
    x = alt.X("length:O", title="length of path", axis=alt.Axis(labelAngle=0, **bare))
    y = alt.Y("head:N", sort=list(dict.fromkeys(rows["head"])), title=None, axis=alt.Axis(**bare))
    tooltip = [alt.Tooltip("head:N"), alt.Tooltip("length:O"), alt.Tooltip("value:Q", format=".4~g")]
    chart = alt.Chart(rows).mark_rect().encode(x=x, y=y, color=_signed(rows), tooltip=tooltip, description="label:N")
    chart = chart.properties(width=alt.Step(24), height=alt.Step(14))
    heading = "Heads by length" if len(rows["head"].unique()) < MOST_HEADS else f"The {MOST_HEADS} largest, by length"
    return _titled(chart, heading, "sums of all paths through the head", title)


def player_rows(report: PathReport) -> list[dict[str, Any]]:
    players = report.players
    if players is None:
        return []
    rows = []
    for kind, layers in (("heads", players.heads), ("MLP", players.mlps)):
        for layer, values in enumerate(layers):
            if values:
                total = sum(values)
                label = f"{kind} of layer {layer}: {numeral(total)}"
                rows.append({"layer": layer, "player": kind, "value": total, "label": label})
    return rows


def player_chart(report: PathReport, *, title: bool = True) -> alt.LayerChart:
    rows = pd.DataFrame(player_rows(report))
    last = int(rows["layer"].max())
    labels = list(range(0, last + 1, max(1, -(-(last + 1) // 12))))
    x = alt.X("layer:O", title="layer", axis=alt.Axis(labelAngle=0, values=labels))
    bars = (
        alt.Chart(rows)
        .mark_bar()
        .encode(
            x=x,
            y=_value_axis(rows, "Shapley value"),
            color=_series("player", ["heads", "MLP"]),
            description="label:N",
            tooltip=[alt.Tooltip("layer:O"), alt.Tooltip("player:N"), alt.Tooltip("value:Q", format=".4~g")],
        )
    )
    chart = alt.layer(bars, _zero()).properties(width=WIDTH, height=HEIGHT)
    return _titled(chart, "Heads and MLPs as players of one game", "a layer's heads together", title)


def path_panels(report: PathReport) -> alt.VConcatChart:
    """Everything, under one title."""
    above = alt.hconcat(length_chart(report), reconstruction_chart(report), spacing=40)
    below: list[Any] = [head_length_map(report), *([player_chart(report)] if player_rows(report) else [])]
    beside = alt.hconcat(*below, spacing=40).resolve_scale(color="independent")
    rows = [above, value_grid(report), beside]
    text = report.text if len(report.text) <= 90 else report.text[:87] + "..."
    heading = alt.TitleParams(f"{report.model}: {report.target}", subtitle=[text] if text else [], offset=14)
    return alt.vconcat(*rows, spacing=30).resolve_scale(color="independent").properties(title=heading)


def _titled(chart: Any, text: str, subtitle: str, title: bool) -> Any:
    words = alt.TitleParams(text, subtitle=[subtitle], fontSize=13, offset=8)
    return chart.properties(title=words) if title else chart


def _series(name: str, names: list[str]) -> alt.Color:
    legend = alt.Legend(orient="top", title=None)
    return alt.Color(f"{name}:N", sort=names, scale=alt.Scale(domain=names), title=None, legend=legend)


def _signed(rows: pd.DataFrame) -> alt.Color:
    """Zero in the middle: equal colours of both signs are equally large."""
    reach = float(rows["value"].abs().max()) or 1.0
    scale = alt.Scale(domain=[-reach, reach], domainMid=0, nice=False, range="diverging")
    legend = alt.Legend(orient="bottom", gradientLength=150, gradientThickness=8, tickCount=3)
    return alt.Color("value:Q", scale=scale, title=None, legend=legend)


def _length_axis(lengths: pd.Series, title: str = "length of path (heads passed)") -> alt.X:
    last = int(lengths.max())
    labels = list(range(0, last + 1, max(1, -(-(last + 1) // 16))))
    return alt.X("length:O", title=title, axis=alt.Axis(labelAngle=0, values=labels))


def _zero() -> alt.Chart:
    return alt.Chart(pd.DataFrame([{"value": 0.0}])).mark_rule(style="others").encode(y="value:Q")


def exactly(length: int) -> str:
    return "no head" if length == 0 else "one head" if length == 1 else f"{length} heads"


def visible(word: str) -> str:
    """A word on one line: what has no picture of its own, such as a line's end, as Python would write it."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in word)


def _value_axis(rows: pd.DataFrame, title: str | list[str]) -> alt.Y:
    """Values that stand on each other, in the unit of the target."""
    return alt.Y("value:Q", title=title, axis=alt.Axis(tickCount=6, **tick_labels(rows["value"].astype(float))))


def wrapped(target: str) -> str | list[str]:
    """The whole name of a target beside an axis: in lines that are as long as the axis is high."""
    target = visible(target)
    whole = re.sub(r"'[^']*'", lambda word: word[0].replace(" ", HARD_SPACE), target)  # a word keeps its own spaces
    lines = textwrap.wrap(whole, LONGEST_TITLE, break_on_hyphens=False)
    if len(lines) < 2:
        return target
    even = textwrap.wrap(whole, len(target) // len(lines) + 5, break_on_hyphens=False)  # no last line of one word
    return [line.replace(HARD_SPACE, " ") for line in (even if len(even) == len(lines) else lines)]
