"""The chart of the atlas: the attention of heads to the first token in every model, beside its random twin."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from attnscope.commands.atlas.record import Atlas, EntryStack

TRAINED, RANDOM = "trained", "random twin"


def chart(atlas: Atlas, *, width: int = 520) -> Any:
    """Draw 5%, the median and 95% of the heads of every model, models with the largest 95% on top."""
    lines = [
        line
        for entry in atlas.entries
        for weights, stacks in ((TRAINED, entry.stacks), (RANDOM, entry.twin))
        for line in _line(entry.name, weights, stacks[-1:])
    ]
    rows = pd.DataFrame(lines, columns=["model", "weights", "low", "median", "high"])
    trained = rows[rows["weights"] == TRAINED].sort_values("high", ascending=False)
    x = alt.X("low:Q", title="attention to the first token", scale=alt.Scale(domain=[0, 1]))
    y = alt.Y("model:N", sort=list(trained["model"]), title=None, axis=alt.Axis(grid=False, ticks=False))
    colour = alt.Color("weights:N", sort=[TRAINED, RANDOM], title=None, legend=alt.Legend(orient="top"))
    offset = alt.YOffset("weights:N", sort=[TRAINED, RANDOM])
    base = alt.Chart(rows).encode(y=y, yOffset=offset, color=colour)
    tooltip = ["model:N", "weights:N", *(alt.Tooltip(f"{name}:Q", format=".2f") for name in ("low", "median", "high"))]
    return alt.layer(
        base.mark_rule(strokeWidth=2).encode(x=x, x2="high:Q"),
        base.mark_circle(size=28).encode(x="median:Q", tooltip=tooltip),
    ).properties(width=width, height=alt.Step(9), title=f"Heads of {len(atlas.entries)} real models, 5% to 95%")


def _line(name: str, weights: str, stacks: tuple[EntryStack, ...]) -> list[tuple[str, str, float, float, float]]:
    grids = [stack.grid("sink_mass", "value", "self") for stack in stacks]
    return [
        (name, weights, *np.quantile(grid.values, (0.05, 0.5, 0.95)).tolist())
        for grid in grids
        if grid is not None and len(grid.values)
    ]
