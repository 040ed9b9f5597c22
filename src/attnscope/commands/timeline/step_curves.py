"""Charts on a step axis: the loss with alarms as marks, a measure as a map of blocks and steps, heads as lines.

    chart = loss_chart(timeline, 720)
    chart = step_map(timeline, ("entropy", "value", "model", "self"), 720)
    chart = head_lines(timeline, ("entropy", "value", "model", "self"), layer=3, width=720)

Many looks are thinned (`commands/timeline/read.py`), and the subtitle says so. Looks need not be evenly spaced: a cell
of a map extends from its look to the next.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from attnscope.commands.compare.chart import distinct
from attnscope.commands.timeline.read import Columns
from attnscope.commands.timeline.record import Key, Timeline
from attnscope.commands.timeline.words import loss_trouble
from attnscope.commands.watch.look import RunHeader
from attnscope.core.card import Card
from attnscope.core.errors import RefusalError
from attnscope.core.words import numeral
from attnscope.reports.colours import scale
from attnscope.reports.rows import unit_title
from attnscope.reports.theme import tick_labels

MOST = 160  # columns of a chart
TALLEST = 320  # pixels of a map
RELATIVE = ("inactive_heads",)  # relative to the block's mean, which is always 1, so the smallest head matters

LEVEL_RULES = {  # the alarm whose `level` is the limit of a measure
    "entropy": "entropy_collapse",
    "relative_residual": "layers_collapsing",
    "sink_mass": "sinks_forming",
    "max_logit": "max_logit_growth",
}


def loss_chart(timeline: Timeline, width: int, *, height: int = 190, most: int = MOST) -> alt.LayerChart:
    """Draw the loss of every run, with a triangle where an alarm (not a note) began."""
    names = distinct([run.name for run in timeline.runs])
    rows = pd.DataFrame(
        [row for run, name in zip(timeline.runs, names, strict=True) for row in _losses(run, name, most)]
    )
    if rows.empty:
        raise RefusalError("The loss of this run is unknown: draw a measure, chart('entropy').")
    x = _steps(timeline, width)
    y = alt.Y(
        "loss:Q", title="loss", scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=5, **tick_labels(rows["loss"]))
    )
    colours = _told_apart(names)
    base = alt.Chart(rows)
    layers: list[Any] = [
        base.mark_line(style="line").encode(x=x, y=y, **colours),
        base.mark_circle(style="reading", size=14 if len(rows) <= 80 else 5).encode(
            x=x, y=y, description="label:N", tooltip=["step:Q", alt.Tooltip("loss:Q", format=".4~g")], **colours
        ),
    ]
    marks = pd.DataFrame([row for run, name in zip(timeline.runs, names, strict=True) for row in _marks(run, name)])
    if not marks.empty:
        layers.append(alt.Chart(marks).mark_rule(style="threshold").encode(x=alt.X("step:Q"), tooltip=["label:N"]))
        layers.append(
            alt.Chart(marks)
            .mark_point(shape="triangle-down", style="broken", filled=True, size=90, opacity=1)
            .encode(x=alt.X("step:Q"), y=alt.value(6), description="label:N", tooltip=["label:N"])
        )
    return alt.layer(*layers).properties(width=_inner(width), height=height)


def step_map(
    timeline: Timeline, key: Key, width: int, *, rows_of: str | None = None, most: int = MOST
) -> alt.VConcatChart | alt.Chart:
    """Draw a map for each run, blocks downwards, steps to the right, on one colour scale."""
    card = card_of(timeline, key)
    grids = [of_heads(run.numbers(key), rows_of or worry(card)) for run in timeline.runs]
    seen = np.concatenate([grid.ravel() for grid in grids]) if grids else np.empty(0)
    if not np.isfinite(seen).any():
        raise RefusalError(f"'{key[0]}' has no finite number in this run: draw another measure.")
    span = scale(seen, card)
    colour = alt.Color(
        "value:Q",
        scale=span.colours(),
        title=unit_title(card),
        legend=alt.Legend(orient="bottom", gradientLength=180, gradientThickness=8),
    )
    made = []
    for run, grid, name in zip(timeline.runs, grids, distinct([r.name for r in timeline.runs]), strict=True):
        columns = Columns.of(len(run.looks), most)
        place = f"{name}, {layer_title(card, key)}" if timeline.beside else layer_title(card, key)
        cells = _cells(run, columns, columns.thin(grid), place)
        layers = grid.shape[1]
        row = max(4, min(18, TALLEST // max(layers, 1)))
        every = max(1, -(-12 // row))
        axis = alt.Axis(labelExpr=f"datum.value % {every} == 0 ? datum.label : ''", ticks=False, domain=False)
        grid_chart = (
            alt.Chart(cells)
            .mark_rect()
            .encode(
                x=_steps(timeline, width),
                x2="until:Q",
                y=alt.Y("layer:O", title=layer_title(card, key), axis=axis),
                color=colour,
                description="label:N",
                tooltip=["label:N"],
            )
            .properties(width=_inner(width), height=row * layers)
        )
        made.append(grid_chart.properties(title=_title(name if timeline.beside else "", columns.words(len(run.looks)))))
    return alt.vconcat(*made).resolve_scale(color="shared") if len(made) > 1 else made[0]


def head_lines(
    timeline: Timeline, key: Key, layer: int, width: int, *, height: int = 190, most: int = MOST
) -> alt.LayerChart:
    """Draw a line for each head of one block of the first run; heads named by an alarm are highlighted."""
    card = card_of(timeline, key)
    numbers = timeline.numbers(key)
    if numbers.ndim < 3:
        numbers = numbers[:, :, None]
    if layer not in range(numbers.shape[1]):
        raise RefusalError(f"'{key[0]}' has no block {layer}: there are 0 to {numbers.shape[1] - 1}.")
    columns = Columns.of(len(timeline.looks), most)
    thin = columns.thin(numbers[:, layer])
    steps = timeline.steps[columns.begins]
    loud = {head for spell in timeline.alarms for row in spell.told for at, head in row.heads if at == layer}
    rows = pd.DataFrame(
        [
            {
                "step": int(step),
                "head": head,
                "value": float(value),
                "alarm": "named by an alarm" if head in loud else "other heads",
                "label": f"step {step:,}, head {head}: {numeral(float(value), 3)}",
            }
            for step, line in zip(steps, thin, strict=True)
            for head, value in enumerate(line)
            if np.isfinite(value)
        ]
    )
    if rows.empty:
        raise RefusalError(f"'{key[0]}' has no finite number in block {layer}: draw another one.")
    log = card.log and bool((rows["value"] > 0).all())
    y = alt.Y(
        "value:Q",
        title=unit_title(card),
        scale=alt.Scale(type="log", nice=False) if log else alt.Scale(zero=card.low == 0, nice=True),
        axis=alt.Axis(tickCount=5),
    )
    domain = ["other heads", "named by an alarm"] if loud else ["other heads"]
    colour = alt.Color(
        "alarm:N",
        scale=alt.Scale(domain=domain),
        title=None,
        legend=alt.Legend(orient="top", symbolType="stroke") if loud else None,
    )
    return alt.layer(
        alt.Chart(rows)
        .mark_line(strokeWidth=1.2, opacity=0.75)
        .encode(x=_steps(timeline, width), y=y, detail="head:N", color=colour, tooltip=["label:N"])
    ).properties(width=_inner(width), height=height)


def card_of(timeline: Timeline, key: Key) -> Card:
    """Return the card of a measure from any run, with the limit of the run's own alarm; or an empty card."""
    for run in timeline.runs:
        if key[0] in run.header.measures:
            return with_level(run.header.measures[key[0]], run.header)
    infinite = float("inf")
    measure, part, _, site = key
    return Card(
        measure, measure, "", "", -infinite, infinite, citation="", scope="attention", parts=(part,), sites=(site,)
    )


def with_level(card: Card, header: RunHeader) -> Card:
    """Return the card with the level at which the run's alarm rings, so that a page states one limit for a measure."""
    settings = header.settings.get("thresholds")
    rule = settings.get(LEVEL_RULES.get(card.name, "")) if isinstance(settings, dict) else None
    level = rule.get("level") if isinstance(rule, dict) else None
    if card.alarm is None or not isinstance(level, int | float):
        return card
    return replace(card, alarm=replace(card.alarm, threshold=float(level)))


def worry(card: Card) -> str:
    """Return how to reduce the heads of a block: "largest" or "smallest", whichever the alarm watches, else "mean"."""
    if card.name in RELATIVE:
        return "smallest"
    return "mean" if card.alarm is None else "largest" if card.alarm.relation == ">" else "smallest"


def of_heads(numbers: np.ndarray, rows_of: str) -> np.ndarray:
    """Reduce [looks, layers, heads] to [looks, layers]: mean, smallest or largest of the heads; NaN if all are
    missing.
    """
    if numbers.ndim == 2:
        return numbers
    known = np.isfinite(numbers)
    none = ~known.any(axis=2)
    if rows_of == "mean":
        made = np.where(known, numbers, 0.0).sum(axis=2) / np.maximum(known.sum(axis=2), 1)
    elif rows_of == "smallest":
        made = np.where(known, numbers, np.inf).min(axis=2, initial=np.inf)
    else:
        made = np.where(known, numbers, -np.inf).max(axis=2, initial=-np.inf)
    return np.where(none, np.nan, made)


def layer_title(card: Card, key: Key) -> str:
    return "entering block" if key[3] == "stream" and not card.of_block else "block"


def reach(steps: np.ndarray, begins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps at which columns start, and at which they end. The last column gets the median width."""
    starts = steps[begins]
    if not len(starts):
        return starts, starts
    width = int(np.median(np.diff(starts))) if len(starts) > 1 else 1
    return starts, np.append(starts[1:], starts[-1] + max(width, 1))


def _cells(run: Timeline, columns: Columns, grid: np.ndarray, place: str) -> pd.DataFrame:
    starts, ends = reach(run.steps, columns.begins)
    return pd.DataFrame(
        [
            {
                "step": int(start),
                "until": int(end),
                "layer": layer,
                "value": float(grid[column, layer]),
                "label": f"step {start:,}, {place} {layer}: {numeral(float(grid[column, layer]), 3)}",
            }
            for column, (start, end) in enumerate(zip(starts, ends, strict=True))
            for layer in range(grid.shape[1])
            if np.isfinite(grid[column, layer])
        ]
    )


def _title(name: str, thinned: str) -> alt.TitleParams:
    """Return the name of the run as title, and a subtitle on how it was thinned."""
    lines = textwrap.wrap(thinned, 100)
    return alt.TitleParams(name or lines[:1] or "", subtitle=lines if name else lines[1:], fontSize=11, offset=4)


def _losses(run: Timeline, name: str, most: int) -> list[dict[str, Any]]:
    columns = Columns.of(len(run.looks), most)
    steps, losses = run.steps[columns.begins], columns.thin(run.losses)
    trouble = loss_trouble(run)
    return [
        {
            "run": name,
            "step": int(step),
            "loss": float(loss),
            "label": f"{name}, step {step:,}: loss {numeral(float(loss), 4)}"
            + (", above its lowest" if trouble == step else ""),
        }
        for step, loss in zip(steps, losses, strict=True)
        if np.isfinite(loss)
    ]


def _marks(run: Timeline, name: str) -> list[dict[str, Any]]:
    """Return alarms that are more severe than notes."""
    return [
        {"run": name, "step": spell.alarm.step, "label": f"{name}, step {spell.alarm.step:,}: {spell.alarm.sentence}"}
        for spell in run.alarms
        if spell.alarm.severity != "note"
    ]


def _steps(timeline: Timeline, width: int) -> alt.X:
    last = max((int(run.steps[-1]) for run in timeline.runs if run.looks), default=1)
    first = min((int(run.steps[0]) for run in timeline.runs if run.looks), default=0)
    return alt.X(
        "step:Q",
        title="step",
        scale=alt.Scale(domain=[first, max(last, first + 1)], nice=False, clamp=True),
        axis=alt.Axis(tickCount=max(3, width // 130), format=",d", labelOverlap=True, labelFlush=True),
    )


def _told_apart(names: Sequence[str]) -> dict[str, Any]:
    """Return a colour encoding for several runs."""
    if len(names) < 2:
        return {}
    legend = alt.Legend(orient="top", symbolType="stroke", symbolSize=400, symbolStrokeWidth=2, columns=1)
    return {"color": alt.Color("run:N", sort=list(names), title=None, legend=legend)}


def _inner(width: int) -> int:
    """Return the width without axes."""
    return max(120, width - 72)
