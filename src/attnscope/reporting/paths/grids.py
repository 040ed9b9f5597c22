"""Grids of heads as plain SVG: where every cell, label and name stands for a width of the page.

Cells carry classes of the page's diverging ramp, so that they follow light and dark. They grow until the grid fills its
card; where they are wide enough their numbers are written into them, and every cell carries its sentence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnscope.charts.palette import STEPS
from attnscope.core.numerals import numeral

LETTER = 6.6  # pixels that a letter of 11 takes at most, on average
NAME = 18.0  # of an axis
LOWEST, HIGHEST = 20, 40  # of a cell
TALL = 200  # pixels that a grid may grow to where its rows do not need more
NARROWEST = 5.0  # of a cell: a grid of more columns than fit is scrolled
MANY = 40  # rows: cells are half as high


@dataclass(frozen=True)
class Cell:
    """One place: its step of the ramp, the number in it (or nothing), and what it says."""

    x: float
    y: float
    step: int
    number: str
    label: str


@dataclass(frozen=True)
class Label:
    at: float
    text: str


@dataclass(frozen=True)
class Grid:
    """A grid for one width; `across` and `down` name its axes."""

    width: float
    height: float
    left: float
    cell_width: float
    cell_height: float
    cells: tuple[Cell, ...]
    columns: tuple[Label, ...]
    rows: tuple[Label, ...]
    across: str
    down: str
    reach: str  # the largest value of either sign

    @property
    def bottom(self) -> float:
        return self.height - 2 * NAME


def grid(rows: Sequence[Mapping[str, Any]], across: str, down: str, width: int, **names: str) -> Grid:
    """`rows` are those of a chart: a value and its label at every place. `names` are other names of the axes."""
    columns, lines = (list(dict.fromkeys(row[name] for row in rows)) for name in (across, down))
    left = NAME + LETTER * max(len(str(line)) for line in lines) + 8
    wide = max(NARROWEST, round((width - left - 2) / len(columns), 2))
    high = LOWEST / 2 if len(lines) > MANY else float(max(LOWEST, min(HIGHEST, round(wide), TALL // len(lines))))
    numbers = [numeral(row["value"], 3) for row in rows]
    if LETTER * max(map(len, numbers)) + 6 > wide or high < LOWEST:
        numbers = [""] * len(rows)
    reach = max((abs(row["value"]) for row in rows if math.isfinite(row["value"])), default=0.0)
    cells = []
    for row, number in zip(rows, numbers, strict=True):
        value = row["value"]
        if math.isfinite(value):
            step = round(STEPS // 2 * value / reach) if reach else 0
        else:  # the middle colour for what is no number, the ends for infinities
            step = 0 if math.isnan(value) else int(math.copysign(STEPS // 2, value))
        x, y = left + wide * columns.index(row[across]), high * lines.index(row[down])
        cells.append(Cell(round(x, 2), round(y, 2), STEPS // 2 + step, number, row["label"]))
    return Grid(
        width=round(left + wide * len(columns) + 2, 2),
        height=high * len(lines) + 2 * NAME,
        left=left,
        cell_width=wide,
        cell_height=high,
        cells=tuple(cells),
        columns=_labels(columns, wide, LETTER * max(len(str(one)) for one in columns) + 6, left),
        rows=_labels(lines, high, 14.0, 0.0),
        across=names.get(across, across),
        down=names.get(down, down),
        reach=numeral(reach),
    )


def _labels(names: list[Any], step: float, least: float, start: float) -> tuple[Label, ...]:
    """So many that they do not run into each other: all, or every second, fifth, tenth and so on."""
    every = next(n * 10**power for power in range(9) for n in (1, 2, 5) if n * 10**power * step >= least)
    shown = [(place, name) for place, name in enumerate(names) if place % every == 0]
    return tuple(Label(round(start + step * (place + 0.5), 2), str(name)) for place, name in shown)
