"""The matrix of a continuation: the score of every token that was read (columns) for every token that followed (rows).

Each row is divided by its own largest score, because logits differ from token to token. The columns of a sound are
times. Of a long text, the columns are the tokens with the highest scores in any row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from attnscope.commands.explain.record import Explanation, Input
from attnscope.commands.paths.vocabulary import signed, visible
from attnscope.core.words import numeral

# Pictures and sounds with the score of every part laid over them: geometry for a page and for a terminal.
#
# Patches are cells of one unit in a drawing of rows x columns; a sound is a row of bars over time. Both are shaded by
# the largest score among patches or moments. Leading tokens ([CLS], registers) often have higher scores and are listed
# separately.

MOST_BARS = 150
WIDE, HIGH, FOOT = 1000, 150, 34  # height of the drawing of a sound, and of its time axis


@dataclass(frozen=True)
class Cell:
    """One patch: its place, the strength and sign of its colour, and its tooltip."""

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
    middle: str  # of bars that point up and down
    said: str


def overlay(read: Input, numbers: tuple[float, ...]) -> Overlay | None:
    """Return cells over a picture, or None if the layout of its patches is unknown."""
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
    """Return bars over time, each for several moments if there are many. Silence after the end is left out, with a
    note.
    """
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


MOST_COLUMNS, MOST_MOMENTS, MOST_ROWS = 48, 150, 64
LEFT, ROW, MATRIX_WIDE = 150, 22, 1000  # of the drawing: width of the row labels, height of a row, width of all columns
HEAD, MATRIX_FOOT = 110, 30  # labels of columns above, or time below
LONGEST_WORD = 14


@dataclass(frozen=True)
class Place:
    """A cell, and its tooltip."""

    x: str
    y: str
    width: str
    height: str
    strength: str
    side: str
    reading: str


@dataclass(frozen=True)
class Label:
    x: str
    y: str
    text: str


@dataclass(frozen=True)
class Matrix:
    name: str
    height: int
    rows: tuple[Label, ...]
    columns: tuple[Label, ...]
    ticks: tuple[Tick, ...]
    cells: tuple[Place, ...]
    said: str

    @property
    def against(self) -> bool:
        """Whether any cell is negative."""
        return any(cell.side == "against" for cell in self.cells)


def matrices(found: Explanation, method: str) -> tuple[Matrix, ...]:
    """Return a matrix for each input that the method scores; empty without a continuation or without scores of it."""
    if not found.steps or method not in found.steps[0].methods:
        return ()
    made = []
    for place, read in enumerate(found.inputs):
        rows = [step.of(method)[place] for step in found.steps[:MOST_ROWS]]
        if all(rows) and any(any(row) for row in rows):
            made.append(_drawn(found, read, rows))
    return tuple(made)


def _drawn(found: Explanation, read: Input, rows: list[tuple[float, ...]]) -> Matrix:
    sound = read.kind == "sound" and read.step is not None
    numbers, names, said = _moments(read, rows) if sound else _tokens(read, rows)
    longest = max((len(_short(name)) for name in names), default=0)
    top, count = (10 if sound else min(HEAD, 24 + 8 * longest)), len(names)
    width = min((MATRIX_WIDE - LEFT) / count, 40.0) if not sound else (MATRIX_WIDE - LEFT) / count
    words = [_short(step.word) for step in found.steps[: len(rows)]]
    cells = []
    for y, (row, step) in enumerate(zip(numbers, found.steps, strict=False)):
        largest = largest_of(row)
        for x, number in enumerate(row):
            share = number / largest
            if abs(share) >= 0.02:  # smaller shares would be nearly white
                cells.append(
                    Place(
                        f"{LEFT + x * width:.1f}",
                        f"{top + y * ROW}",
                        f"{width:.2f}",
                        f"{ROW - 2}",
                        f"{min(abs(share), 1.0):.2f}",
                        "for" if share >= 0 else "against",
                        f"'{visible(step.word)}' from {names[x]}: {signed(number)}, {share:.0%} of the largest",
                    )
                )
    labels = tuple(Label(f"{LEFT - 8}", f"{top + y * ROW + 15}", word) for y, word in enumerate(words))
    heads = (
        ()
        if sound
        else tuple(Label(f"{LEFT + (x + 0.5) * width:.1f}", f"{top - 6}", _short(name)) for x, name in enumerate(names))
    )
    ticks: tuple[Tick, ...] = ()
    if sound:
        lasting = float(len(numbers[0])) * _together(read, rows) * (read.step or 0.0)
        ticks = tuple(
            Tick(f"{LEFT + float(tick.x) / MATRIX_WIDE * (MATRIX_WIDE - LEFT):.1f}", tick.label)
            for tick in time_ticks(lasting)
        )
    return Matrix(
        read.name, top + len(rows) * ROW + (MATRIX_FOOT if sound else 4), labels, heads, ticks, tuple(cells), said
    )


def _heard(read: Input) -> int:
    """Return the number of moments before the sound ends."""
    if read.seconds is None or read.step is None:
        return len(read.tokens)
    return min(len(read.tokens), max(1, math.ceil(read.seconds / read.step - 1e-9)))


def _together(read: Input, rows: list[tuple[float, ...]]) -> int:
    return max(1, math.ceil(min(_heard(read), len(rows[0])) / MOST_MOMENTS))


def _moments(read: Input, rows: list[tuple[float, ...]]) -> tuple[list[list[float]], list[str], str]:
    heard, together, step = _heard(read), _together(read, rows), read.step or 0.0
    numbers = [binned(row[:heard], together) for row in rows]
    names = [f"{n * together * step:.2f} s" for n in range(len(numbers[0]))]
    return numbers, names, "Time runs to the right; every row is divided by its largest number."


def _tokens(read: Input, rows: list[tuple[float, ...]]) -> tuple[list[list[float]], list[str], str]:
    """Return the columns with the highest scores in any row, in reading order."""
    sizes = [max(abs(row[place]) / largest_of(row) for row in rows) for place in range(len(rows[0]))]
    kept = sorted(sorted(range(len(sizes)), key=lambda place: -sizes[place])[:MOST_COLUMNS])
    some = f" Shown are {len(kept)} of {len(sizes)} tokens." if len(kept) < len(sizes) else ""
    numbers = [[row[place] if math.isfinite(row[place]) else 0.0 for place in kept] for row in rows]
    return (
        numbers,
        [visible(read.tokens[place]) for place in kept],
        f"Every row is divided by its largest number.{some}",
    )


def _short(word: str) -> str:
    shown = visible(word).strip() or visible(word)
    return shown if len(shown) <= LONGEST_WORD else f"{shown[: LONGEST_WORD - 1]}…"
