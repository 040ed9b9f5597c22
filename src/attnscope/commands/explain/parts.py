"""The parts of an input that can be replaced: words of a text, groups of patches of a picture, moments of a sound."""

from __future__ import annotations

import math
from dataclasses import dataclass

from attnscope.commands.explain.record import Input, Scored
from attnscope.commands.explain.replacing import words_of
from attnscope.commands.explain.running import Run
from attnscope.commands.explain.tried import joined

REGIONS = 4  # a picture is cut into this many rows and columns of regions
MOMENTS = 12  # a sound is cut into this many groups of moments


@dataclass(frozen=True)
class Part:
    """Tokens of one input that are replaced together. `place` is the number of the input."""

    place: int
    tokens: tuple[int, ...]
    word: str
    asks: bool = False  # the answer is read at one of these tokens
    among: tuple[int, int] = (0, 0)  # the patches or moments of the whole picture or sound

    def score(self, method: Scored) -> float:
        row = method.scores[self.place]
        return math.fsum(row[token] for token in self.tokens) if row else -math.inf


def parts_of(whole: Run, inputs: tuple[Input, ...]) -> list[Part]:
    """Return all parts of all inputs.

    Tokens of a continuation are the answer, and white space has nothing to replace it: both belong to no part.
    """
    return [part for place, read in enumerate(inputs) for part in _parts(whole, place, read, place == len(inputs) - 1)]


def _parts(whole: Run, place: int, read: Input, last: bool) -> list[Part]:
    if read.kind == "image":
        return _regions(place, read)
    if read.kind == "sound":
        return _moments(place, read)
    if not whole.places[place].looks_up:
        return []
    stop, asking = len(read.tokens), whole.aim.position if last else None
    if last and whole.read.continued:
        stop -= len(whole.read.continued) - 1
        asking = stop - 1
    return [
        Part(place, tuple(range(*span)), joined(read.tokens[slice(*span)]), asking in range(*span))
        for span in words_of(read.tokens)
        if span[1] <= stop and "".join(read.tokens[slice(*span)]).strip()
    ]


def _regions(place: int, read: Input) -> list[Part]:
    if read.grid is None:
        return []
    height, width = read.grid
    tall, broad = math.ceil(height / REGIONS), math.ceil(width / REGIONS)
    parts = []
    for top in range(0, height, tall):
        for left in range(0, width, broad):
            rows, columns = range(top, min(top + tall, height)), range(left, min(left + broad, width))
            tokens = tuple(read.before + row * width + column for row in rows for column in columns)
            word = f"the patches in rows {rows[0]} to {rows[-1]}, columns {columns[0]} to {columns[-1]}"
            parts.append(Part(place, tokens, word, among=(read.before, len(read.tokens))))
    return parts


def _moments(place: int, read: Input) -> list[Part]:
    if read.step is None or read.seconds is None:
        return []
    heard = min(len(read.tokens), math.ceil(read.seconds / read.step))
    size = max(1, math.ceil(heard / MOMENTS))
    return [
        Part(
            place,
            tuple(range(begin, min(begin + size, heard))),
            f"the sound from {begin * read.step:.2f} to {min(begin + size, heard) * read.step:.2f} s",
            among=(0, heard),
        )
        for begin in range(0, heard, size)
    ]
