"""The matrix of a continuation: what every token that was read (columns) did for every token that followed (rows).

Rows are divided by their own largest number: logits differ from token to token, and where a row looks is what is asked.
A sound has time as its columns. Of many tokens of a text those that did most for any row are shown.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from attnscope.charts.path_rows import signed, visible
from attnscope.records.explanation import Explanation, Input
from attnscope.reporting.explanation.scenes import Tick, binned, largest_of, time_ticks

MOST_COLUMNS, MOST_MOMENTS, MOST_ROWS = 48, 150, 64
LEFT, ROW, WIDE = 150, 22, 1000  # of the drawing: labels of rows, height of one, width of all
HEAD, FOOT = 110, 30  # labels of columns above, or time below
LONGEST_WORD = 14


@dataclass(frozen=True)
class Place:
    """A cell, and what is read of it."""

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
        """Whether anything in it speaks against its row."""
        return any(cell.side == "against" for cell in self.cells)


def matrices(found: Explanation, method: str) -> tuple[Matrix, ...]:
    """One for each input that the method speaks of; none where there is no continuation, or the method has none."""
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
    width = min((WIDE - LEFT) / count, 40.0) if not sound else (WIDE - LEFT) / count
    words = [_short(step.word) for step in found.steps[: len(rows)]]
    cells = []
    for y, (row, step) in enumerate(zip(numbers, found.steps, strict=False)):
        largest = largest_of(row)
        for x, number in enumerate(row):
            share = number / largest
            if abs(share) >= 0.02:  # what would be nearly white
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
            Tick(f"{LEFT + float(tick.x) / WIDE * (WIDE - LEFT):.1f}", tick.label) for tick in time_ticks(lasting)
        )
    return Matrix(read.name, top + len(rows) * ROW + (FOOT if sound else 4), labels, heads, ticks, tuple(cells), said)


def _heard(read: Input) -> int:
    """Moments before the sound ends."""
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
    """The columns that did most for any row, in the order of reading."""
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
