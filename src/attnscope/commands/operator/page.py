"""The page of an operator's map: the verdict, the map, and what is most to the last row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from attnscope.commands.operator.record import OperatorMap
from attnscope.commands.operator.words import last_row, lines, sentences, verdict
from attnscope.commands.paths.chart_rows import signed, visible
from attnscope.core.errors import RefusalError
from attnscope.reports.document import rows
from attnscope.reports.export import drawn_to_fit
from attnscope.reports.page import page
from attnscope.reports.words import beginning_words

# An operator's map as a picture: rows of the output from top to bottom, tokens that were read from left to right.
#
# Rows differ in size by orders of magnitude, so each is divided by its own largest number; the numbers themselves are
# under the pointer. Of many tokens, neighbours share a cell, which shows their mean.

MOST_SIDE = 40  # cells along a side
LARGEST_CELL, SMALLEST_CELL, SIDE = 24, 11, 460  # pixels
LONGEST_WORD = 12


def cell_rows(found: OperatorMap) -> list[dict[str, Any]]:
    """One row for each cell, in the order of reading."""
    down, across = (_groups(len(side)) for side in (found.rows, found.tokens))
    cells = []
    for above in down:
        means = [_mean([found.values[i][j] for i in above for j in beside]) for beside in across]
        largest = max((abs(mean) for mean in means if math.isfinite(mean)), default=0.0) or 1.0
        for beside, mean in zip(across, means, strict=True):
            row, token = _name(found.rows, above), _name(found.tokens, beside)
            error = "" if found.errors is None or len(above) * len(beside) > 1 else _error(found, above[0], beside[0])
            cells.append(
                {
                    "row": row,
                    "token": token,
                    "share": mean / largest if math.isfinite(mean) else None,
                    "label": f"to row {row} from token {token}: {signed(mean)}{error}",
                }
            )
    return cells


def operator_map(found: OperatorMap, *, width: int | None = None) -> alt.Chart:
    rows = pd.DataFrame(cell_rows(found))
    if rows["share"].isna().all():
        raise RefusalError("No number of this map is finite: there is nothing to draw.")
    down, across = (list(dict.fromkeys(rows[name])) for name in ("row", "token"))
    two_sided = {"domain": [-1, 1], "domainMid": 0, "range": "diverging"}
    negative = bool((rows["share"] < 0).any())
    scale = alt.Scale(**(two_sided if negative else {"domain": [0, 1], "range": "heatmap"}), nice=False)
    bare: dict[str, Any] = {"ticks": False, "domain": False, "grid": False, "labelLimit": 110}
    cell = max(SMALLEST_CELL, min(LARGEST_CELL, SIDE // len(across)))
    legend = alt.Legend(orient="bottom", gradientLength=150, gradientThickness=8, tickCount=3)
    chart = (
        alt.Chart(rows)
        .mark_rect()
        .encode(
            x=alt.X("token:N", sort=across, title=None, axis=alt.Axis(orient="top", labelAngle=-60, **bare)),
            y=alt.Y("row:N", sort=down, title=None, axis=alt.Axis(**bare)),
            color=alt.Color("share:Q", scale=scale, title="share of the row's largest", legend=legend),
            description="label:N",
            tooltip=[alt.Tooltip("label:N", title=" ")],
        )
        .properties(height=alt.Step(cell))
    )
    if width is not None:
        return chart.properties(width=width, autosize=alt.AutoSizeParams(type="fit-x", contains="padding"))
    heading = alt.TitleParams(f"{visible(found.model)}, {found.part}", subtitle=[subtitle(found)])
    return chart.properties(width=alt.Step(cell), title=heading)


def subtitle(found: OperatorMap) -> str:
    how = "" if found.probes is None else f", from {found.probes} probes"
    return f"map by {found.map}: {found.title}{how}"


def _groups(count: int) -> list[range]:
    size = math.ceil(count / MOST_SIDE)
    return [range(begin, min(begin + size, count)) for begin in range(0, count, size)]


def _mean(numbers: Sequence[float]) -> float:
    return math.fsum(numbers) / len(numbers) if all(map(math.isfinite, numbers)) else math.nan


def _name(words: Sequence[str], places: range) -> str:
    if len(places) > 1:
        return f"{places[0]} to {places[-1]}"
    word = visible(words[places[0]])
    short = word if len(word) <= LONGEST_WORD else f"{word[: LONGEST_WORD - 1]}…"
    return f"{places[0]}  {short}" if short != str(places[0]) else short


def _error(found: OperatorMap, i: int, j: int) -> str:
    assert found.errors is not None
    return f", standard error {signed(found.errors[i][j]).removeprefix('+')}"


# The picture of an operator's map.


def chart(found: OperatorMap) -> Any:
    """Rows of the output by tokens, as shares of each row's largest number."""
    return operator_map(found)


def render(found: OperatorMap) -> str:
    """The page as text. Equal records give equal pages."""
    several = max(len(found.rows), len(found.tokens)) > MOST_SIDE
    shared = " Neighbours share a cell, which shows their mean." if several else ""
    picture = drawn_to_fit(
        lambda width: operator_map(found, width=width),
        "map",
        title="Rows of the output by tokens",
        caption=f"{subtitle(found).capitalize()}. Every row is divided by its largest number.{shared}",
        summary="What every token is to every row of the output.",
    )
    return page(
        "operator_map.html",
        verdict=verdict(found),
        figures=[picture],
        data=found,
        findings=sentences(found)[1:],
        picture=picture,
        last=last_row(found),
        lines=lines(found),
        begun=beginning_words(found.provenance),
        provenance=rows(found.provenance),
    )
