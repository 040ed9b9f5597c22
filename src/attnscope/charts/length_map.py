"""Tokens by length of path: what the frozen network sends to the answer, exactly, and it adds up both ways."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from attnscope.charts.path_rows import exactly, signed, visible
from attnscope.core.numerals import numeral
from attnscope.records.explanation import Explanation

MOST_TOKENS = 12
ROW = 18  # pixels
LONGEST_WORD = 18
MOST_LENGTHS = 6  # that a caption adds up
SEEN = 0.01  # of the largest number: lengths behind the last that reaches it are not drawn
CONSTANTS, OTHERS = "constants", "other tokens"


def length_rows(found: Explanation) -> list[dict[str, Any]]:
    """A row for each token and length: the tokens that send most, all others together, and constants."""
    split = found.lengths
    assert split is not None
    words = next(one.tokens for one in found.inputs if one.name == split.input)
    sizes = [max(map(abs, row)) for row in split.tokens]
    kept = sorted(sorted(range(len(words)), key=lambda place: -sizes[place])[:MOST_TOKENS])
    named = [(f"{place}  {visible(words[place])[:LONGEST_WORD]}", split.tokens[place]) for place in kept]
    rest = [row for place, row in enumerate(split.tokens) if place not in kept]
    if rest:
        named.append((OTHERS, tuple(sum(column) for column in zip(*rest, strict=True))))
    if any(split.constants):
        named.append((CONSTANTS, split.constants))
    return [
        {
            "token": name,
            "length": length,
            "value": value,
            "label": f"{name}, through {exactly(length)}: {signed(value)}",
        }
        for name, row in named
        for length, value in enumerate(row[: _seen(named)])
    ]


def _seen(named: list[tuple[str, tuple[float, ...]]]) -> int:
    largest = max(abs(value) for _, row in named for value in row)
    reaching = [k for _, row in named for k, value in enumerate(row) if abs(value) >= SEEN * largest]
    return max(reaching, default=0) + 1


def length_map(found: Explanation, *, width: int | None = None) -> alt.Chart:
    rows = pd.DataFrame(length_rows(found))
    reach = float(rows["value"].abs().max()) or 1.0
    bare: dict[str, Any] = {"ticks": False, "domain": False, "grid": False, "labelAngle": 0}
    # By the root of the number: what a token sends through heads is small beside what it says of itself.
    scale = alt.Scale(type="pow", exponent=0.5, domain=[-reach, reach], domainMid=0, nice=False, range="diverging")
    legend = alt.Legend(orient="bottom", gradientLength=150, gradientThickness=8, tickCount=3)
    chart = (
        alt.Chart(rows)
        .mark_rect()
        .encode(
            x=alt.X("length:O", title="heads passed", axis=alt.Axis(**bare)),
            y=alt.Y("token:N", sort=list(dict.fromkeys(rows["token"])), title=None, axis=alt.Axis(**bare)),
            color=alt.Color("value:Q", scale=scale, title=None, legend=legend),
            description="label:N",
            tooltip=[alt.Tooltip("label:N", title=" ")],
        )
        .properties(height=alt.Step(ROW))
    )
    if width is not None:
        return chart.properties(width=width, autosize=alt.AutoSizeParams(type="fit-x", contains="padding"))
    return chart.properties(width=360, title=alt.TitleParams("Path contribution by length", fontSize=13))


def length_caption(found: Explanation) -> str:
    """The sums by length, and what they add up to."""
    split = found.lengths
    assert split is not None
    sums = ", ".join(f"{exactly(k)} {signed(v)}" for k, v in enumerate(split.sums) if k < MOST_LENGTHS)
    more = " and so on" if len(split.sums) > MOST_LENGTHS else ""
    total = f"All together: {numeral(split.total)}; the answer is {numeral(found.value)}."
    return f"Sums over all rows: {sums}{more}. {total} Shades follow the root of the number."
