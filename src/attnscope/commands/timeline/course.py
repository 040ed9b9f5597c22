"""The course of a run on one step axis: loss, a measure as a map, learning rate, gradient norm, tokens a second."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from attnscope.commands.compare.chart import distinct
from attnscope.commands.timeline.read import Columns
from attnscope.commands.timeline.record import Key, Timeline
from attnscope.commands.timeline.reduce import card_of
from attnscope.commands.timeline.step_curves import MOST, colours_of_runs, inner, loss_chart, step_axis, step_map
from attnscope.commands.timeline.words import title_of
from attnscope.core.words import numeral
from attnscope.reports.theme import power_axis, tick_labels

LABELS = 52  # pixels for the labels on the left, equal in all parts so that steps stand below each other
HEIGHT = 70


def course_chart(timeline: Timeline, key: Key | None, width: int, *, most: int = MOST) -> alt.VConcatChart:
    """Draw the loss, the map of `key`, and below them what is known of the training itself."""
    parts: list[Any] = []
    if np.isfinite(np.concatenate([run.losses for run in timeline.runs])).any():
        parts.append(loss_chart(timeline, width, most=most).properties(title="Loss"))
    if key is not None:
        grid = step_map(timeline, key, width, most=most)
        parts.append(grid.properties(title=title_of(card_of(timeline, key), key)))
    parts += [one for title, unit in CURVES if (one := _curve(timeline, title, unit, width, most)) is not None]
    return alt.vconcat(*parts, spacing=14).resolve_scale(color="independent").configure_axisLeft(minExtent=LABELS)


CURVES = (("Learning rate", "rate"), ("Gradient norm", "norm"), ("Tokens a second", "tokens/s"))


def _numbers(run: Timeline, title: str) -> np.ndarray:
    if title == "Tokens a second":
        return run.tokens_a_second if run.looks and run.looks[-1].tokens else np.full(len(run.looks), np.nan)
    return run.training(title.lower().replace(" ", "_"))


def _curve(timeline: Timeline, title: str, unit: str, width: int, most: int) -> alt.Chart | None:
    names = distinct([run.name for run in timeline.runs])
    rows: list[dict[str, Any]] = []
    for run, name in zip(timeline.runs, names, strict=True):
        columns = Columns.of(len(run.looks), most)
        values = columns.thin(_numbers(run, title))
        rows += [
            {
                "run": name,
                "step": int(step),
                "value": float(value),
                "label": f"{name}, step {step:,}: {title.lower()} {numeral(float(value), 3)}",
            }
            for step, value in zip(run.steps[columns.begins], values, strict=True)
            if np.isfinite(value)
        ]
    if not rows:
        return None
    table = pd.DataFrame(rows)
    wide = table["value"].max() > 100 * max(table["value"].min(), 1e-300) and bool((table["value"] > 0).all())
    scale = alt.Scale(type="log", nice=False) if wide else alt.Scale(zero=False)
    ends = float(table["value"].min()), float(table["value"].max())
    axis = alt.Axis(**power_axis(*ends)) if wide else alt.Axis(tickCount=3, **tick_labels(table["value"]))
    return (
        alt.Chart(table)
        .mark_line(style="line")
        .encode(
            x=step_axis(timeline, width),
            y=alt.Y("value:Q", title=unit, scale=scale, axis=axis),
            description="label:N",
            tooltip=["label:N"],
            **colours_of_runs(names, legend=False),
        )
        .properties(width=inner(width), height=HEIGHT, title=title)
    )
