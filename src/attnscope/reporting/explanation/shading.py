"""Tokens shaded by what they did: from a number to a step of a colour ramp, the same on page and terminal."""

from __future__ import annotations

import math
from dataclasses import dataclass

from attnscope.charts.explanation_map import reach
from attnscope.charts.palette import STEPS
from attnscope.charts.path_rows import signed, visible
from attnscope.records.explanation import Explanation, Scored
from attnscope.reporting.explanation.scenes import Overlay, Strip, overlay, strip
from attnscope.reporting.explanation.words import followed


@dataclass(frozen=True)
class Shade:
    """A token, the class of its colour (`q7`, `d20`), and what is read when it is pointed at."""

    text: str
    colour: str
    step: int
    reading: str
    asked: bool  # the token that answers
    followed: bool = False  # not given: of the continuation itself


@dataclass(frozen=True)
class ShadedInput:
    """Tokens of a text; of a picture and a sound what stands before patches, and the drawing of the rest."""

    name: str
    tokens: tuple[Shade, ...]
    overlay: Overlay | None = None
    strip: Strip | None = None


def two_sided(method: Scored) -> bool:
    """Whether a ramp must run to both sides of zero."""
    return method.signed and any(number < 0 for row in method.scores for number in row)


def as_written(tokens: tuple[str, ...]) -> tuple[str, ...]:
    """Tokens such that put side by side they read like the text. Some vocabularies write a space into the token that
    follows it; others do not, and mark the pieces that continue a word (##ing)."""
    if len(tokens) < 2 or any(token[:1].isspace() for token in tokens):
        return tokens
    return tuple(
        token.removeprefix("##") if token.startswith("##") else f"{' ' if place else ''}{token}"
        for place, token in enumerate(tokens)
    )


def shaded(found: Explanation, method: Scored) -> tuple[ShadedInput, ...]:
    """The inputs that a method speaks of, token by token."""
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
