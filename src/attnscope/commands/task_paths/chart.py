"""Charts of heads over a task: values with error bars, a map of all heads, and values against removal."""

from __future__ import annotations

import math
from typing import Any

import altair as alt
import pandas as pd

from attnscope.commands.paths.vocabulary import head_name, signed
from attnscope.commands.task_paths.record import TaskPaths
from attnscope.commands.task_paths.words import SHOWN, effect, interval, target_words
from attnscope.reports.survey_charts import grid_axes
from attnscope.reports.theme import fit

SURE, UNSURE = "known", "may be zero"


def chart(task: TaskPaths) -> Any:
    """Draw the values of heads and, if heads were removed, a scatter plot of values and removals."""
    bars = head_bars(task)
    if task.removal is None:
        return bars
    both = alt.hconcat(bars, removal_scatter(task), spacing=40).resolve_scale(color="independent")
    return both.properties(title=alt.TitleParams(f"{task.model}: {target_words(task)}, {task.task}", offset=12))


def head_bars(task: TaskPaths, *, width: int | None = None) -> Any:
    """Draw the mean and the interval of the largest heads; heads whose sign is not known are faint."""
    rows = pd.DataFrame(
        [
            {
                "head": head_name(head.block, head.head),
                "value": head.value,
                "low": head.low if math.isfinite(head.low) else head.value,
                "high": head.high if math.isfinite(head.high) else head.value,
                "sign": SURE if head.sure else UNSURE,
                "label": f"{head_name(head.block, head.head)}: {signed(head.value)}, {interval(head)}",
            }
            for head in task.heads[:SHOWN]
        ]
    )
    y = alt.Y("head:N", sort=list(rows["head"]), title=None, axis=alt.Axis(labelLimit=200, grid=False))
    x = alt.X("value:Q", title="mean Shapley value over prompts", axis=alt.Axis(grid=True, tickCount=5))
    seen = alt.Opacity("sign:N", scale=alt.Scale(domain=[SURE, UNSURE], range=[1.0, 0.45]), legend=None)
    zero = alt.Chart(pd.DataFrame([{"value": 0.0}])).mark_rule(style="others", strokeDash=[4, 3]).encode(x="value:Q")
    base = alt.Chart(rows)
    layered = alt.layer(
        zero,
        base.mark_bar(height=4).encode(x=alt.X("low:Q"), x2="high:Q", y=y, opacity=seen),
        base.mark_circle(style="reading", size=60).encode(
            x=x, y=y, opacity=seen, description="label:N", tooltip=[alt.Tooltip("label:N", title=" ")]
        ),
    ).properties(height=alt.Step(20))
    return layered.properties(width=380) if width is None else fit(layered, width)


def head_map(task: TaskPaths, *, width: int) -> Any:
    """Draw a map of the mean value of every head: orange adds to the target, blue subtracts."""
    rows = pd.DataFrame(
        [
            {
                "layer": head.block,
                "head": head.head,
                "value": head.value,
                "label": f"{head_name(head.block, head.head)}: {signed(head.value)}",
            }
            for head in sorted(task.heads, key=lambda head: (head.block, head.head))
        ]
    )
    x, y, step = grid_axes(rows)
    largest = float(rows["value"].abs().max()) or 1.0
    scale = alt.Scale(domain=[-largest, largest], domainMid=0, range="diverging", nice=False)
    legend = alt.Legend(orient="bottom", gradientLength=150, gradientThickness=8, tickCount=3)
    colour = alt.Color("value:Q", scale=scale, title="mean Shapley value", legend=legend)
    tooltip = [alt.Tooltip("label:N", title=" ")]
    cells = alt.Chart(rows).mark_rect().encode(x=x, y=y, color=colour, description="label:N", tooltip=tooltip)
    return fit(cells.properties(height=alt.Step(step)), width)


def removal_scatter(task: TaskPaths, *, width: int | None = None) -> Any:
    """Draw every head as a point: its value, and the change of the target without it. On the line both are equal."""
    rows = pd.DataFrame(
        [
            {
                "value": head.value,
                "removed": head.removed,
                "label": f"{head_name(head.block, head.head)}: its value is {signed(head.value)}, and "
                f"removing it {effect(head.removed or 0.0)}",
            }
            for head in task.heads
        ]
    )
    low = min(0.0, float(rows["value"].min()), float(rows["removed"].min()))
    high = max(0.0, float(rows["value"].max()), float(rows["removed"].max()))
    ends = [low, high if high > low else low + 1.0]
    same = alt.Chart(pd.DataFrame({"value": ends, "removed": ends})).mark_line(style="others", strokeDash=[4, 3])
    x = alt.X("value:Q", title="mean Shapley value", axis=alt.Axis(grid=True, tickCount=5))
    y = alt.Y("removed:Q", title="lost when removed", axis=alt.Axis(grid=True, tickCount=5))
    points = alt.Chart(rows).mark_circle(style="reading", size=40, opacity=0.7)
    layered = alt.layer(
        same.encode(x=x, y=y),
        points.encode(x=x, y=y, description="label:N", tooltip=[alt.Tooltip("label:N", title=" ")]),
    ).properties(height=300)
    return layered.properties(width=340) if width is None else fit(layered, width)
