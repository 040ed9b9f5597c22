"""Turn a survey's tidy table into the rows of its charts.

A `Panel` is the part of a table that one chart shows: one measure, in one stack, at one site.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from attnscope.core.card import Card
from attnscope.core.errors import RefusalError
from attnscope.core.words import numeral

ORDER = ("stream", "self", "uneven", "cross")


class Panel(NamedTuple):
    measure: str
    stack: str
    site: str


def panels(table: pd.DataFrame, stacks: Sequence[str] = ()) -> tuple[Panel, ...]:
    """Return a panel for every chart of a table, streams first. The site `middle` is part of the stream.

    `stacks` gives the order of the stacks; the default is the order of the table.
    """
    places = table[["measure", "stack", "site"]].drop_duplicates()
    found = {Panel(str(m), str(s), "stream" if w == "middle" else str(w)) for m, s, w in places.to_numpy()}
    order = list(dict.fromkeys([*stacks, *table["stack"].astype(str)]))
    return tuple(sorted(found, key=lambda p: (ORDER.index(p.site), order.index(p.stack), p.measure)))


def panel_rows(table: pd.DataFrame, panel: Panel) -> pd.DataFrame:
    """Return the part of a table that a panel covers; refuse a panel that the table does not have."""
    sites = ("stream", "middle") if panel.site == "stream" else (panel.site,)
    rows = table[(table["measure"] == panel.measure) & (table["stack"] == panel.stack) & table["site"].isin(sites)]
    if rows.empty:
        raise RefusalError(f"The survey has no measure '{panel.measure}' at '{panel.site}' in stack '{panel.stack}'.")
    return rows


def part_title(part: str) -> str:
    return part.replace("_", " ")


def series_title(card: Card, part: str) -> str:
    """Return the name of a line in a legend: its part, or the measure if the part has no name."""
    return card.title.lower() if part == "value" else part_title(part)


def unit_title(card: Card) -> str:
    """Return an axis title: the measure, and its unit if it has one."""
    return f"{card.title} ({card.unit})" if card.unit and card.unit not in ("1", card.title) else card.title


def depth_rows(table: pd.DataFrame, card: Card, panel: Panel) -> pd.DataFrame:
    """Return one row per depth and part: `depth, part, mean, low, high, broken, label`.

    Stream measures have one number per sequence, so their spread is over sequences (p10 to p90). Attention measures
    have one number per head, so their spread is over the heads of a block (p10 to p90 of the heads' means): it shows
    whether the heads of a block agree.
    """
    rows = panel_rows(table, panel)
    depth = rows["layer"].astype(float) - card.of_block + np.where(rows["site"] == "middle", 0.5, 0.0)
    frame = pd.DataFrame(
        {
            "depth": depth,
            "part": rows["part"].astype(str).map(lambda part: series_title(card, part)),
            "mean": rows["mean"].astype(float),
            "low": rows["p10"].astype(float),
            "high": rows["p90"].astype(float),
            "nonfinite": rows["nonfinite"].astype(float),
        }
    )
    if panel.site != "stream":
        means = frame.groupby(["depth", "part"], sort=False)["mean"]
        broken = frame.groupby(["depth", "part"], sort=False)["nonfinite"].sum()
        columns = {
            "mean": means.mean(),
            "low": means.quantile(0.1),
            "high": means.quantile(0.9),
            "nonfinite": broken,
        }
        frame = pd.DataFrame(columns).reset_index()
    frame["broken"] = (frame["nonfinite"] > 0) | ~np.isfinite(frame["mean"])
    if card.log:
        # A logarithmic axis has no zero: values at or below 0 are drawn on a floor below all others.
        numbers = frame[["mean", "low"]].to_numpy(float)
        above = numbers[np.isfinite(numbers) & (numbers > 0)]
        floor = float(above.min()) / 2 if above.size else 1e-12
        for column in ("mean", "low", "high"):
            frame[column] = frame[column].where(~(frame[column] < floor), floor)
    last = float(frame["depth"].max())
    frame["label"] = [_depth_label(row, card, panel, last) for row in frame.to_dict("records")]
    order = {series_title(card, p): i for i, p in enumerate(card.parts)}
    frame = frame.assign(order=frame["part"].map(order).fillna(len(order))).sort_values(["order", "depth"])
    return frame.drop(columns=["nonfinite", "order"]).reset_index(drop=True)


def depth_title(card: Card, panel: Panel) -> str:
    """Return the title of the depth axis: `block`, or for streams `entering block`."""
    return "entering block" if panel.site == "stream" and not card.of_block else "block"


def depth_words(card: Card, panel: Panel, depth: float, last: float) -> str:
    """Return `entering block 3`, `block 3`, or `after the last block` for the stream that leaves it."""
    if panel.site == "stream" and not card.of_block and depth == last:
        return "after the last block"
    return f"{depth_title(card, panel)} {int(depth)}"


def _depth_label(row: Mapping[Hashable, Any], card: Card, panel: Panel, last: float) -> str:
    depth = float(row["depth"])
    place = f"inside block {int(depth)}, after attention" if depth % 1 else depth_words(card, panel, depth, last)
    name = f"{row['part']}, " if len(card.parts) > 1 else ""
    mean, low, high = (float(row[c]) for c in ("mean", "low", "high"))
    return f"{name}{place}: {numeral(mean)} (p10 {numeral(low)}, p90 {numeral(high)})"


def head_rows(table: pd.DataFrame, panel: Panel, part: str) -> pd.DataFrame:
    """Return one row per block and head: `layer, head, mean, p10, p90, nonfinite, broken, label`."""
    rows = panel_rows(table, panel)
    rows = rows[(rows["part"] == part) & rows["head"].notna()]
    frame = pd.DataFrame(
        {
            "layer": rows["layer"].astype(int),
            "head": rows["head"].astype(int),
            "mean": rows["mean"].astype(float),
            "p10": rows["p10"].astype(float),
            "p90": rows["p90"].astype(float),
            "nonfinite": rows["nonfinite"].astype(int),
        }
    ).sort_values(["layer", "head"], ignore_index=True)
    frame["broken"] = (frame["nonfinite"] > 0) | ~np.isfinite(frame["mean"])
    frame["label"] = [
        f"block {layer}, head {head}: {numeral(mean)}"
        for layer, head, mean in zip(frame["layer"], frame["head"], frame["mean"], strict=True)
    ]
    return frame
