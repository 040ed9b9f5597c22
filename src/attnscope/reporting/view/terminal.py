"""A view in a terminal: the verdict, what heads do, and a letter for every head."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from attnscope.core.numerals import numeral
from attnscope.core.visible import clean
from attnscope.core.words import percent
from attnscope.records.view import HeadMap, Part, View
from attnscope.reporting.beginning import beginning_words
from attnscope.reporting.terminal import lines_under, opening, section
from attnscope.reporting.view.words import does, sentences, title, verdict

ROOM = 72  # letters in a line
LETTERS = {"first": "F", "previous": "P", "own": "S", "": "·"}
LEGEND = "F the first token, P the one before, S itself: more than half of a head's attention; · spread"


def show(found: View, *, verbose: bool = False) -> RenderableType:
    """What a console prints; with `verbose`, numbers of every head."""
    about = ", ".join((f"{found.model} ({found.class_name}, {found.dtype})", *beginning_words(found.provenance)))
    parts: list[RenderableType] = [
        *opening(verdict(found), about),
        Text(""),
        *(Text(clean(sentence)) for sentence in sentences(found)[1:]),
        *(Text(clean(note), style="dim") for note in found.notes),
    ]
    for part in found.parts:
        parts += [
            section(f"{title(part).capitalize()}: a line for each layer, a letter for each head"),
            *_letters(part),
        ]
        if verbose:
            parts += lines_under("Numbers", ("layer", "head", "first", "before", "itself", "entropy"), _lines(part))
    return Group(*parts, Text(LEGEND, style="dim"))


def _letters(part: Part) -> list[RenderableType]:
    rows = []
    for layer in part.layers:
        letters = [LETTERS[does(one)] for one in part.heads if one.layer == layer]
        between = " " if 2 * len(letters) <= ROOM else ""
        rows.append(Text.assemble((f"{layer:>4}  ", "dim"), between.join(letters)))
    return list(rows)


def _lines(part: Part) -> list[tuple[str, ...]]:
    return [(str(one.layer), str(one.head), *_numbers(one)) for one in part.heads]


def _numbers(one: HeadMap) -> tuple[str, ...]:
    shares = (one.first, one.previous, one.own)
    entropy = "–" if one.entropy is None else numeral(one.entropy, 3)
    return (*("–" if share is None else percent(share) for share in shares), entropy)
