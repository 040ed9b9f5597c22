"""The page of a task: the verdict, heads with their error bars, all heads as a grid, and values beside real removal."""

from __future__ import annotations

import math
from typing import Any

import altair as alt
import pandas as pd

from attnscope.commands.paths.chart_rows import head_name, signed
from attnscope.commands.paths.page import grid
from attnscope.commands.task_paths.record import TaskPaths
from attnscope.commands.task_paths.words import (
    HEADING,
    REPLACED,
    SHOWN,
    agreement_lines,
    interval,
    lines,
    sentences,
    target_words,
    verdict,
)
from attnscope.core.words import numeral
from attnscope.reports.document import rows
from attnscope.reports.export import WIDTHS, drawn_to_fit
from attnscope.reports.page import page

# Heads over a task: values with error bars, and values beside what really happens when a head is removed.

SURE, UNSURE = "known", "may be zero"


def chart(task: TaskPaths, *, width: int | None = None) -> Any:
    """Bars of heads; beside them, where heads were removed, the scatter of both numbers."""
    bars = head_bars(task, width=width)
    if width is not None or task.removal is None:
        return bars
    both = alt.hconcat(bars, removal_scatter(task), spacing=40).resolve_scale(color="independent")
    return both.properties(title=alt.TitleParams(f"{task.model}: {target_words(task)}, {task.task}", offset=12))


def head_bars(task: TaskPaths, *, width: int | None = None) -> Any:
    """The largest heads, a point for the mean and a line for its interval; faint where zero cannot be excluded."""
    rows = pd.DataFrame(
        [
            {
                "head": head_name(one.block, one.head),
                "value": one.value,
                "low": one.low if math.isfinite(one.low) else one.value,
                "high": one.high if math.isfinite(one.high) else one.value,
                "sign": SURE if one.sure else UNSURE,
                "label": f"{head_name(one.block, one.head)}: {signed(one.value)}, {interval(one)}",
            }
            for one in task.heads[:SHOWN]
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
    if width is not None:
        return layered.properties(width=width, autosize=alt.AutoSizeParams(type="fit-x", contains="padding"))
    return layered.properties(width=380)


def removal_scatter(task: TaskPaths, *, width: int | None = None) -> Any:
    """Every head: its value across, what the target loses without it upwards; on the line both are the same."""
    rows = pd.DataFrame(
        [
            {
                "value": one.value,
                "removed": one.removed,
                "label": f"{head_name(one.block, one.head)}: worth {signed(one.value)}, "
                f"without it the target loses {signed(one.removed or 0.0)}",
            }
            for one in task.heads
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
    if width is not None:
        return layered.properties(width=width, autosize=alt.AutoSizeParams(type="fit-x", contains="padding"))
    return layered.properties(width=340)


def render(task: TaskPaths) -> str:
    """The page as text. Equal records give equal pages."""
    bars = drawn_to_fit(
        lambda width: head_bars(task, width=width),
        "heads",
        title="The heads that are worth most",
        caption="Points: mean Shapley value over prompts. Lines: 95% interval of each head over prompts drawn again. "
        "Faint: zero cannot be excluded once all heads are looked at.",
        summary="Mean value of the largest heads with their intervals.",
    )
    scatter = None
    if task.removal is not None:
        scatter = drawn_to_fit(
            lambda width: removal_scatter(task, width=width),
            "removal",
            title="Values beside real removal",
            caption=f"Every head; removed means {REPLACED[task.removal]}, and everything behind it recomputes. "
            "On the dashed line both numbers are the same.",
            summary="Mean value of every head and what the target loses without it.",
        )
    every = [
        {
            "block": one.block,
            "head": one.head,
            "value": one.value,
            "label": f"{head_name(one.block, one.head)}: {signed(one.value)}",
        }
        for one in sorted(task.heads, key=lambda one: (one.block, one.head))
    ]
    asked = [
        (one.text, one.target, one.against or "", numeral(one.value), "" if one.loss is None else numeral(one.loss))
        for one in task.prompts
    ]
    return page(
        "task_paths.html",
        verdict=verdict(task),
        figures=[bars, *([scatter] if scatter else [])],
        styles=("paths.css",),
        data=task,
        findings=sentences(task)[1:],
        bars=bars,
        scatter=scatter,
        values={fit: grid(every, "block", "head", width) for fit, width in WIDTHS.items()},
        heading=HEADING,
        lines=lines(task),
        agreement=agreement_lines(task),
        prompts=asked,
        replaced=REPLACED.get(task.removal or "", ""),
        provenance=rows(task.provenance),
    )
