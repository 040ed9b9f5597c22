"""A map as a small SVG: one path per colour step, one stroke per run of a colour; a cell costs a few characters.

svg = strokes(steps, "q")                       # [column, row] colour steps; columns one wide
svg = strokes(steps, "q", at=edges)             # columns from edge to edge, in whole units
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from jaxtyping import Int

MISSING, BROKEN = -1, -2
"""Colour steps of a place that was not measured, where nothing is drawn, and of one that is no number: crossed out."""


def strokes(steps: Int[np.ndarray, "column row"], ramp: str, at: Int[np.ndarray, " edge"] | None = None) -> str:
    """`ramp` names the colours: `d` run to either side of zero, `q` one way. Edges are one more than columns."""
    columns, rows = steps.shape
    edges = np.arange(columns + 1) if at is None else at
    wide = columns if at is None else 1000
    found: defaultdict[int, list[str]] = defaultdict(list)
    for row in range(rows):
        start = 0
        for column in range(1, columns + 1):
            if column == columns or steps[column, row] != steps[start, row]:
                length = max(edges[column] - edges[start], 1)  # two looks within one unit still show
                found[int(steps[start, row])].append(f"M{edges[start]} {row}h{length}")
                start = column
    paths = "".join(
        f'<path class="{f"{ramp}{step}" if step >= 0 else "void"}" d="{"".join(runs)}"/>'
        for step, runs in sorted(found.items())
        if step != MISSING
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="map" viewBox="0 -0.5 {wide} {rows}"'
        f' preserveAspectRatio="none" aria-hidden="true" focusable="false">{paths}</svg>'
    )
