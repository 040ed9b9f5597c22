"""Pictures and sounds with what every part of them did laid over them: geometry for a page and for a terminal.

Patches are cells of one unit in a drawing of rows x columns; a sound is a row of bars over time. Both are shaded by the
largest number among patches or moments: what stands before them ([CLS], registers) often did more and is listed apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from attnscope.charts.path_rows import signed
from attnscope.core.numerals import numeral
from attnscope.records.explanation import Input

MOST_BARS = 150
WIDE, HIGH, FOOT = 1000, 150, 34  # of the drawing of a sound, and what the time axis takes of it


@dataclass(frozen=True)
class Cell:
    """One patch: where it is, how strongly it is coloured, for or against, and what is read of it."""

    x: int
    y: int
    strength: str
    side: str
    reading: str


@dataclass(frozen=True)
class Overlay:
    rows: int
    columns: int
    shown: str | None
    cells: tuple[Cell, ...]
    said: str


@dataclass(frozen=True)
class Bar:
    x: str
    y: str
    width: str
    height: str
    side: str
    reading: str


@dataclass(frozen=True)
class Tick:
    x: str
    label: str


@dataclass(frozen=True)
class Strip:
    """A sound over time."""

    bars: tuple[Bar, ...]
    ticks: tuple[Tick, ...]
    middle: str  # of bars that point both ways
    said: str


def overlay(read: Input, numbers: tuple[float, ...]) -> Overlay | None:
    """Cells over a picture; None where it is not known how patches lie."""
    if read.grid is None or not numbers:
        return None
    rows, columns = read.grid
    patches = numbers[read.before :]
    largest = largest_of(patches)
    cells = tuple(
        Cell(
            place % columns,
            place // columns,
            f"{min(abs(number) / largest, 1.0):.3f}",
            "for" if number >= 0 else "against",
            f"patch {place // columns},{place % columns} (row, column): {signed(number)}, {number / largest:.0%} of "
            "the largest patch",
        )
        for place, number in enumerate(map(_finite, patches))
    )
    total = math.fsum(abs(_finite(number)) for number in numbers)
    apart = math.fsum(abs(_finite(number)) for number in numbers[: read.before])
    before = f" {apart / total:.0%} of it fell on what is no patch." if read.before and total else ""
    said = f"{rows} x {columns} patches; the largest is {numeral(largest)}.{before}"
    return Overlay(rows, columns, read.shown, cells, said)


def strip(read: Input, numbers: tuple[float, ...]) -> Strip | None:
    """Bars over time, several moments to each where there are many; silence behind the end is left out and said."""
    if read.kind != "sound" or not numbers or read.step is None:
        return None
    lasting = read.window or 0.0 if read.seconds is None else min(read.seconds, read.window or read.seconds)
    heard = min(len(numbers), max(1, math.ceil(lasting / read.step - 1e-9)))
    together = max(1, math.ceil(heard / MOST_BARS))
    sums = binned(numbers[:heard], together)
    largest = largest_of(sums)
    both = min(sums) < 0
    middle = HIGH / 2 if both else float(HIGH)
    width = WIDE / len(sums)
    bars = []
    for place, number in enumerate(sums):
        size = min(abs(number) / largest, 1.0) * (middle - 2)
        begin, end = place * together * read.step, min((place + 1) * together, heard) * read.step
        bars.append(
            Bar(
                f"{place * width:.2f}",
                f"{middle - size if number >= 0 else middle:.2f}",
                f"{max(width - 0.8, 0.6):.2f}",
                f"{max(size, 0.5):.2f}",
                "for" if number >= 0 else "against",
                f"{begin:.2f} to {end:.2f} s: {signed(number)}, {number / largest:.0%} of the largest",
            )
        )
    ticks = time_ticks(heard * read.step)
    total, behind = (math.fsum(abs(_finite(n)) for n in some) for some in (numbers, numbers[heard:]))
    silent = (
        f" {behind / total:.0%} of it fell on the silence behind the end." if total and heard < len(numbers) else ""
    )
    said = f"A bar is {together * read.step:.2g} s ({together} of the model's {len(numbers)} moments).{silent}"
    return Strip(tuple(bars), ticks, f"{middle:.2f}", said)


def time_ticks(seconds: float) -> tuple[Tick, ...]:
    every = next(one for one in (0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300, 1e9) if seconds / one <= 14)
    count = int(seconds / every + 1e-9)
    return tuple(Tick(f"{n * every / seconds * WIDE:.2f}", f"{n * every:g}") for n in range(count + 1))


def binned(numbers: tuple[float, ...], together: int) -> list[float]:
    return [math.fsum(map(_finite, numbers[begin : begin + together])) for begin in range(0, len(numbers), together)]


def largest_of(numbers: tuple[float, ...] | list[float]) -> float:
    return max((abs(_finite(number)) for number in numbers), default=0.0) or 1.0


def _finite(number: float) -> float:
    return number if math.isfinite(number) else 0.0
