"""An operator's map as a picture: rows of the output from top to bottom, tokens that were read from left to right.

Rows differ in size by orders of magnitude, so each is divided by its own largest number; tooltips show the numbers
themselves. If there are many tokens, neighbours share a cell, which shows their mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from attnscope.commands.operator.record import OperatorMap
from attnscope.commands.operator.words import MOST_SIDE, map_words
from attnscope.commands.paths.vocabulary import signed, visible
from attnscope.core.errors import RefusalError
from attnscope.reports.theme import fit

LARGEST_CELL, SMALLEST_CELL, SIDE = 24, 11, 460  # pixels
LONGEST_WORD = 12


def cell_rows(found: OperatorMap) -> list[dict[str, Any]]:
    """Return one row for each cell, in reading order."""
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


def chart(found: OperatorMap, *, width: int | None = None) -> alt.Chart:
    """Draw rows of the output by tokens, as shares of each row's largest number."""
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
    picture = (
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
        return fit(picture, width)
    heading = alt.TitleParams(f"{visible(found.model)}, {found.part}", subtitle=[map_words(found)])
    return picture.properties(width=alt.Step(cell), title=heading)


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
