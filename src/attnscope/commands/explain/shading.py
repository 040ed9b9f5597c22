"""Tokens shaded by what they did: from a number to a step of a colour ramp, the same on page and terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from rich.color import Color
from rich.style import Style
from rich.text import Text

from attnscope.commands.explain.chart import reach
from attnscope.commands.explain.pictures import HIGH, WIDE, Overlay, Strip, overlay, strip
from attnscope.commands.explain.record import Explanation, Scored
from attnscope.commands.explain.words import followed
from attnscope.commands.paths.vocabulary import signed, visible
from attnscope.reports.colours import STEPS, diverging, sequential
from attnscope.reports.terminal import BLOCKS


@dataclass(frozen=True)
class Shade:
    """A token, the class of its colour (`q7`, `d20`), and its text under the pointer."""

    text: str
    colour: str
    step: int
    reading: str
    asked: bool  # the token that answers
    followed: bool = False  # of the continuation


@dataclass(frozen=True)
class ShadedInput:
    """Tokens of a text; of a picture or sound the tokens before its patches, and a drawing of the rest."""

    name: str
    tokens: tuple[Shade, ...]
    overlay: Overlay | None = None
    strip: Strip | None = None


def two_sided(method: Scored) -> bool:
    """Return whether colours must diverge from zero."""
    return method.signed and any(number < 0 for row in method.scores for number in row)


def as_written(tokens: tuple[str, ...]) -> tuple[str, ...]:
    """Return tokens that read like the text when joined. Some vocabularies put the space into the next token; others
    mark pieces that continue a word (##ing)."""
    if len(tokens) < 2 or any(token[:1].isspace() for token in tokens):
        return tokens
    return tuple(
        token.removeprefix("##") if token.startswith("##") else f"{' ' if place else ''}{token}"
        for place, token in enumerate(tokens)
    )


def shaded(found: Explanation, method: Scored) -> tuple[ShadedInput, ...]:
    """Return the inputs that a method covers, token by token."""
    largest, both = reach(method), two_sided(method)
    made = []
    ranks = {(token.input, token.place): rank for rank, token in enumerate(found.top(method.name, 10**9), 1)}
    for read, row in zip(found.inputs, method.scores, strict=True):
        if not row:
            continue
        tokens = []
        drawn = overlay(read, row), strip(read, row)
        listed = read.before if drawn[0] else 0 if drawn[1] else len(row)
        texts = as_written(read.tokens[:listed])
        for place, (word, number) in enumerate(zip(read.tokens[:listed], row[:listed], strict=True)):
            share = number / largest if math.isfinite(number) else 0.0
            at = (1 + share) / 2 if both else max(share, 0.0)
            step = round(at * (STEPS - 1))
            reading = (
                f"'{visible(word)}' (token {place}): {signed(number)}, {share:.0%} of the largest, "
                f"number {ranks[read.name, place]} of {len(ranks)}"
            )
            asked = read is found.inputs[-1] and place == found.position
            behind = followed(found, read, place)
            reading += ", of the continuation itself" * behind
            tokens.append(Shade(texts[place], f"{'d' if both else 'q'}{step}", step, reading, asked, behind))
        made.append(ShadedInput(read.name, tuple(tokens), *drawn))
    return tuple(made)


SOUND_COLUMNS = 75  # of bars of a sound
SHADES = " ░▒▓█"  # for consoles without colour


def patch_lines(drawn: Overlay) -> Iterator[Text]:
    """Draw a patch as two letters, nearly square, coloured as on the page; letters get darker too, for consoles without
    colour."""
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
    """Draw a sound as one row of bars, the largest of each group, with seconds below."""
    width = min(SOUND_COLUMNS, len(drawn.bars))
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
