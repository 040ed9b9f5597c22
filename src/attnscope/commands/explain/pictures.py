"""Drawings of an explanation: patches over a picture, a sound as bars over time, and the matrix of a continuation.

Patches and moments are shaded relative to their largest score. Leading tokens ([CLS], registers) often have higher
scores and are listed separately. The matrix has a row for every token that followed and a column for every token that
was read; each row is divided by its own largest score, because logits differ from token to token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from attnscope.commands.explain.record import Explanation, Input
from attnscope.commands.paths.vocabulary import signed, visible
from attnscope.core.words import numeral
from attnscope.reports.colours import STEPS
from attnscope.reports.tabs import Cell, Drawing, Label, Shade
from attnscope.reports.terminal import BLOCKS

WIDTH = 1000  # width of a broad drawing
BAR_HEIGHT, AXIS_HEIGHT = 150, 34  # heights of the bars and of the time axis, in the drawing of a sound
MOST_BARS, MOST_LETTERS = 150, 75  # bars of a sound on a page and in a terminal
LETTERS = " ░▒▓█"  # shades of patches, for consoles without colour
MOST_COLUMNS, MOST_ROWS = 48, 64  # columns and rows of a matrix
ROW_LABELS, COLUMN_LABELS, ROW = 150, 110, 22  # in a matrix: width and height of labels, height of a row
FAINT = 0.02  # share of the largest; cells below it would be nearly white
LONGEST_WORD = 14


def patches(read: Input, numbers: Sequence[float], label: str = "") -> Drawing | None:
    """Return cells over a picture, or None if the layout of its patches is unknown."""
    if read.grid is None or not numbers:
        return None
    rows, columns = read.grid
    scores = [_finite(number) for number in numbers[read.before :]]
    largest = largest_of(scores)
    cells = tuple(
        Cell(
            place % columns,
            place // columns,
            1,
            1,
            min(abs(number) / largest, 1.0),
            number < 0,
            f"patch {place // columns},{place % columns} (row, column): {signed(number)}, {number / largest:.0%} of "
            "the largest patch",
        )
        for place, number in enumerate(scores)
    )
    total = math.fsum(abs(_finite(number)) for number in numbers)
    leading = math.fsum(abs(_finite(number)) for number in numbers[: read.before])
    elsewhere = f" {leading / total:.0%} of all scores belong to leading tokens." if leading and total else ""
    return Drawing(
        "What every patch did, beside the picture as the model read it",
        columns,
        rows,
        cells,
        picture=read.shown or "",
        label=label,
        caption=f"{rows} x {columns} patches; the largest score is {numeral(largest)}.{elsewhere}",
        lines_of_text=tuple(_patch_row(cells[row * columns : (row + 1) * columns], cells) for row in range(rows)),
    )


def _patch_row(row: Sequence[Cell], cells: Sequence[Cell]) -> tuple[Shade, ...]:
    """Draw a patch as two letters, which are nearly square and get darker with the score."""
    diverging = any(cell.against for cell in cells)
    shades = []
    for cell in row:
        share = float(f"{cell.opacity:.3f}") * (-1 if cell.against else 1)
        step = round(((1 + share) / 2 if diverging else share) * (STEPS - 1))
        letter = LETTERS[round(max(share, 0.0) * (len(LETTERS) - 1))]
        shades.append(Shade(letter * 2, f"{'d' if diverging else 'q'}{step}"))
    return tuple(shades)


def sound(read: Input, numbers: Sequence[float], label: str = "") -> Drawing | None:
    """Return bars over time, each for several moments if there are many, or None if `read` is not a sound.

    Silence after the end of the sound is not drawn; the caption says how much of the scores it has.
    """
    if read.kind != "sound" or not numbers or read.step is None:
        return None
    length = read.window or 0.0 if read.seconds is None else min(read.seconds, read.window or read.seconds)
    heard = min(len(numbers), max(1, math.ceil(length / read.step - 1e-9)))
    together = max(1, math.ceil(heard / MOST_BARS))
    sums = _sums(numbers[:heard], together)
    largest = largest_of(sums)
    middle = BAR_HEIGHT / 2 if min(sums) < 0 else float(BAR_HEIGHT)
    width = WIDTH / len(sums)
    bars = []
    for place, number in enumerate(sums):
        size = min(abs(number) / largest, 1.0) * (middle - 2)
        begin, end = place * together * read.step, min((place + 1) * together, heard) * read.step
        reading = f"{begin:.2f} to {end:.2f} s: {signed(number)}, {number / largest:.0%} of the largest"
        y = middle - size if number >= 0 else middle
        bars.append(Cell(place * width, y, max(width - 0.8, 0.6), max(size, 0.5), 1.0, number < 0, reading))
    ticks = _ticks(heard * read.step)
    total, after = (math.fsum(abs(_finite(number)) for number in part) for part in (numbers, numbers[heard:]))
    silent = (
        f" {after / total:.0%} of all scores belong to the silence after the end."
        if total and heard < len(numbers)
        else ""
    )
    return Drawing(
        "What every moment did",
        WIDTH,
        BAR_HEIGHT + AXIS_HEIGHT,
        tuple(bars),
        labels=_tick_labels(ticks, 0, BAR_HEIGHT + AXIS_HEIGHT - 8),
        lines=(*((x * WIDTH, 0.0, x * WIDTH, BAR_HEIGHT + 6.0) for x, _ in ticks), (0.0, middle, WIDTH, middle)),
        broad=True,
        label=label,
        caption=f"A bar is {together * read.step:.2g} s ({together} of the model's {len(numbers)} moments).{silent}",
        lines_of_text=_bar_rows(bars, ticks),
    )


def _bar_rows(bars: Sequence[Cell], ticks: Sequence[tuple[float, str]]) -> tuple[tuple[Shade, ...], ...]:
    """Draw a sound as one row of bars, the highest of each group, and a row of seconds below it."""
    width = min(MOST_LETTERS, len(bars))
    heights = [0.0] * width
    for place, bar in enumerate(bars):
        group = place * width // len(bars)
        heights[group] = max(heights[group], 0.0 if bar.against else bar.height)
    top = max(heights) or 1.0
    letters = "".join(BLOCKS[round(height / top * (len(BLOCKS) - 1))] for height in heights)
    axis = ""
    for x, text in ticks:
        column = round(x * (width - 1))
        if column > len(axis) or not axis:
            axis = axis.ljust(column) + text
    return (Shade(letters),), (Shade(f"{axis} s", mark="dim"),)


def _ticks(seconds: float) -> list[tuple[float, str]]:
    """Return at most 15 times as shares of the length, with their labels."""
    interval = next(size for size in (0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300, 1e9) if seconds / size <= 14)
    amount = int(seconds / interval + 1e-9)
    return [(n * interval / seconds, f"{n * interval:g}") for n in range(amount + 1)]


def _tick_labels(ticks: Sequence[tuple[float, str]], left: int, y: int) -> tuple[Label, ...]:
    """Return labels at their ticks. The first starts at its tick, and one at the edge ends at its tick."""
    return tuple(
        Label(
            left + x * (WIDTH - left),
            y,
            f"{text} s" if place == 0 else text,
            "start" if place == 0 else "end" if x > 0.99 else "middle",
        )
        for place, (x, text) in enumerate(ticks)
    )


def _sums(numbers: Sequence[float], together: int) -> list[float]:
    return [math.fsum(map(_finite, numbers[begin : begin + together])) for begin in range(0, len(numbers), together)]


def largest_of(numbers: Sequence[float]) -> float:
    """Return the largest absolute value, or 1 if all are zero."""
    return max((abs(_finite(number)) for number in numbers), default=0.0) or 1.0


def _finite(number: float) -> float:
    return number if math.isfinite(number) else 0.0


def matrices(found: Explanation, method: str) -> tuple[Drawing, ...]:
    """Return a matrix for each input that the method scores; nothing if there is no continuation, or no score of it."""
    if not found.steps or method not in found.steps[0].methods:
        return ()
    drawings = []
    for place, read in enumerate(found.inputs):
        rows = [step.of(method)[place] for step in found.steps[:MOST_ROWS]]
        if all(rows) and any(any(row) for row in rows):
            drawings.append(_matrix(found, read, rows))
    return tuple(drawings)


def _matrix(found: Explanation, read: Input, rows: list[tuple[float, ...]]) -> Drawing:
    in_time = read.kind == "sound" and read.step is not None
    numbers, names, length, caption = _moments(read, rows) if in_time else _columns(read, rows)
    longest = max((len(_short(name)) for name in names), default=0)
    top = 10 if in_time else min(COLUMN_LABELS, 24 + 8 * longest)
    width = (WIDTH - ROW_LABELS) / len(names)
    width = width if in_time else min(width, 40.0)
    cells = []
    for y, (row, step) in enumerate(zip(numbers, found.steps, strict=False)):
        largest = largest_of(row)
        for x, number in enumerate(row):
            share = number / largest
            if abs(share) >= FAINT:
                reading = f"'{visible(step.word)}' from {names[x]}: {signed(number)}, {share:.0%} of the largest"
                box = (ROW_LABELS + x * width, top + y * ROW, width, ROW - 2)
                cells.append(Cell(*box, min(abs(share), 1.0), share < 0, reading))
    height = top + len(rows) * ROW + (30 if in_time else 4)
    labels = [
        Label(ROW_LABELS - 8, top + y * ROW + 15, _short(step.word), "end")
        for y, step in enumerate(found.steps[: len(rows)])
    ]
    ticks = _ticks(length) if in_time else []
    labels += _tick_labels(ticks, ROW_LABELS, height - 8)
    if not in_time:
        places = (ROW_LABELS + (x + 0.5) * width for x in range(len(names)))
        labels += [Label(x, top - 6, _short(name), "start", True) for x, name in zip(places, names, strict=True)]
    across = [ROW_LABELS + x * (WIDTH - ROW_LABELS) for x, _ in ticks]
    return Drawing(
        "What every token that was read did for every token that followed",
        WIDTH,
        height,
        tuple(cells),
        labels=tuple(labels),
        lines=tuple((x, 8.0, x, height - 24.0) for x in across),
        broad=True,
        title=f"From {f'the {read.name}' if len(found.inputs) > 1 else 'what was read'} to what followed",
        caption=caption,
        key=("for the token of the row", *["against it"] * any(cell.against for cell in cells)),
    )


def _moments(read: Input, rows: list[tuple[float, ...]]) -> tuple[list[list[float]], list[str], float, str]:
    """Return sums over moments until the sound ends, the time of each sum, the time of all of them, and a caption."""
    step = read.step or 0.0
    heard = len(read.tokens)
    if read.seconds is not None:
        heard = min(heard, max(1, math.ceil(read.seconds / step - 1e-9)))
    together = max(1, math.ceil(min(heard, len(rows[0])) / MOST_BARS))
    numbers = [_sums(row[:heard], together) for row in rows]
    names = [f"{n * together * step:.2f} s" for n in range(len(numbers[0]))]
    length = float(len(numbers[0])) * together * step
    return numbers, names, length, "Time runs to the right; every row is divided by its largest number."


def _columns(read: Input, rows: list[tuple[float, ...]]) -> tuple[list[list[float]], list[str], float, str]:
    """Return the columns with the highest scores in any row, in reading order, with their names and a caption."""
    sizes = [max(abs(row[place]) / largest_of(row) for row in rows) for place in range(len(rows[0]))]
    kept = sorted(sorted(range(len(sizes)), key=lambda place: -sizes[place])[:MOST_COLUMNS])
    some = f" Shown are {len(kept)} of {len(sizes)} tokens." if len(kept) < len(sizes) else ""
    numbers = [[_finite(row[place]) for place in kept] for row in rows]
    names = [visible(read.tokens[place]) for place in kept]
    return numbers, names, 0.0, f"Every row is divided by its largest number.{some}"


def _short(word: str) -> str:
    shown = visible(word).strip() or visible(word)
    return shown if len(shown) <= LONGEST_WORD else f"{shown[: LONGEST_WORD - 1]}…"
