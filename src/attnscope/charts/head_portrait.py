"""One head among all others: for every measure, a strip with a tick per head and a dot for this one.

    chart = head_portrait(survey.table(), survey.cards, stack="decoder", site="self", layer=12, head=3)

Measures have different units, so each strip runs from the smallest value of any head to the largest; the
head's own number stands beside it. Ticks are quantiles (at most 101), so that 96 x 96 heads cost no more
than one hundred.
"""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt
import numpy as np
import pandas as pd

from attnscope.charts.rows import part_title
from attnscope.core.card import Card
from attnscope.core.errors import RefusalError
from attnscope.core.numerals import numeral

TICKS = 101


def portrait_rows(
    table: pd.DataFrame, cards: Mapping[str, Card], *, stack: str, site: str, layer: int, head: int
) -> pd.DataFrame:
    """One row per tick and one, `own`, per dot: `title, place, own, value, below, text`.

    `place` is 0 at the smallest value of any head and 1 at the largest; `below` is the share of heads with less.
    """
    rows = table[(table["stack"] == stack) & (table["site"] == site) & table["head"].notna()]
    rows = rows[rows["measure"].isin(list(cards))]
    if not ((rows["layer"] == layer) & (rows["head"] == head)).any():
        raise RefusalError(f"The survey has no head {head} in block {layer} at '{site}' in stack '{stack}'.")
    answer: list[dict[str, object]] = []
    for (measure, part), group in rows.groupby(["measure", "part"], sort=False):
        card = cards[str(measure)]
        title = card.title + (f", {part_title(str(part))}" if len(card.parts) > 1 else "")
        means = group["mean"].to_numpy(float)
        finite = np.sort(means[np.isfinite(means)])
        own = means[((group["layer"] == layer) & (group["head"] == head)).to_numpy(bool)]
        if not finite.size or not own.size:
            continue
        low, width = finite[0], finite[-1] - finite[0]
        ticks = finite if finite.size <= TICKS else np.quantile(finite, np.linspace(0, 1, TICKS))
        answer += [
            {"title": title, "place": _place(v, low, width), "own": False, "value": float(v), "text": ""} for v in ticks
        ]
        value = float(own[0])
        answer.append(
            {
                "title": title,
                "place": _place(value, low, width),
                "own": True,
                "value": value,
                "below": float((finite < value).mean()),
                "text": f"{numeral(value)} {card.unit}".rstrip(),
            }
        )
    return pd.DataFrame(answer, columns=["title", "place", "own", "value", "below", "text"]).astype({"own": bool})


def head_portrait(
    table: pd.DataFrame, cards: Mapping[str, Card], *, stack: str, site: str, layer: int, head: int
) -> alt.LayerChart:
    rows = portrait_rows(table, cards, stack=stack, site=site, layer=layer, head=head)
    y = alt.Y(
        "title:N",
        title=None,
        sort=list(dict.fromkeys(rows["title"])),
        axis=alt.Axis(labelLimit=240, grid=False),
    )
    x = alt.X(
        "place:Q",
        title="smallest to largest value of any head",
        scale=alt.Scale(domain=[0, 1]),
        axis=alt.Axis(labels=False, ticks=False),
    )
    own = alt.Chart(rows[rows["own"]])
    tooltip = [
        alt.Tooltip("title:N", title="measure"),
        alt.Tooltip("text:N", title="mean"),
        alt.Tooltip("below:Q", title="heads with less", format=".0%"),
    ]
    return alt.layer(
        alt.Chart(rows[~rows["own"]][["title", "place"]]).mark_tick(style="others", height=10).encode(x=x, y=y),
        own.mark_circle(style="own").encode(x=x, y=y, tooltip=tooltip),
        own.mark_text(align="left", dx=12, style="number").encode(x=alt.value(320), y=y, text="text:N"),
    ).properties(
        width=320,
        height=alt.Step(24),
        title=alt.TitleParams(
            f"Block {layer}, head {head}", subtitle=f"{stack}, {site}-attention, among all its heads"
        ),
    )


def _place(value: float, low: float, width: float) -> float:
    return float((value - low) / width) if width > 0 else 0.5
