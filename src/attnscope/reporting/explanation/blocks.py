"""Pictures and sounds in a terminal: a patch is two letters wide, a sound is a row of bars over time."""

from __future__ import annotations

from collections.abc import Iterator

from rich.color import Color
from rich.style import Style
from rich.text import Text

from attnscope.charts.palette import STEPS, diverging, sequential
from attnscope.reporting.explanation.scenes import HIGH, WIDE, Overlay, Strip
from attnscope.reporting.terminal import BLOCKS

COLUMNS = 75  # of bars of a sound
SHADES = " ░▒▓█"  # for consoles without colour


def patch_lines(drawn: Overlay) -> Iterator[Text]:
    """Two letters to a patch, so that it is nearly square, coloured as on the page; the letters themselves grow darker
    too, for consoles without colour."""
    both = any(cell.side == "against" for cell in drawn.cells)
    ramp = diverging("light") if both else sequential("light")
    cells = {(cell.y, cell.x): cell for cell in drawn.cells}

    def colour(row: int, column: int) -> tuple[Color, float]:
        cell = cells[row, column]
        share = float(cell.strength) * (-1 if cell.side == "against" else 1)
        at = (1 + share) / 2 if both else share
        return Color.parse(ramp[round(at * (STEPS - 1))]), share

    for row in range(drawn.rows):
        line = Text("")
        for column in range(drawn.columns):
            ground, share = colour(row, column)
            letter = SHADES[round(max(share, 0.0) * (len(SHADES) - 1))]
            line.append(letter * 2, style=Style(bgcolor=ground, color=ground))
        yield line
    yield Text(drawn.said, style="dim")


def bar_lines(drawn: Strip) -> Iterator[Text]:
    """One row of bars, the largest of each few, and the seconds under them."""
    width = min(COLUMNS, len(drawn.bars))
    heights = [0.0] * width
    for place, bar in enumerate(drawn.bars):
        at = place * width // len(drawn.bars)
        heights[at] = max(heights[at], float(bar.height) / HIGH if bar.side == "for" else 0.0)
    top = max(heights) or 1.0
    yield Text("".join(BLOCKS[round(height / top * (len(BLOCKS) - 1))] for height in heights))
    axis = [" "] * (width + 6)
    for tick in drawn.ticks:
        at = round(float(tick.x) / WIDE * (width - 1))
        axis[at : at + len(tick.label)] = tick.label
    yield Text("".join(axis).rstrip() + " s", style="dim")
    yield Text(drawn.said, style="dim")
