"""The page of a task: the verdict, heads with their error bars, all heads as a grid, and values beside real removal."""

from __future__ import annotations

from attnscope.charts.path_rows import head_name, signed
from attnscope.core.numerals import numeral
from attnscope.records.task_paths import TaskPaths
from attnscope.reporting.document import page, rows
from attnscope.reporting.drawing import WIDTHS, drawn_to_fit
from attnscope.reporting.paths.grids import grid
from attnscope.reporting.task_paths.chart import head_bars, removal_scatter
from attnscope.reporting.task_paths.words import HEADING, REPLACED, agreement_lines, lines, sentences, verdict


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
