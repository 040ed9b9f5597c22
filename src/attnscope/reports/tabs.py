"""Views of one input that a reader switches between: text on background colours, and drawings of shaded cells.

    Section("The text", tabs=(
        Tab("Relevance", blocks=(ShadedText((Shade("The", "q3", "'The': +0.1"), Shade(" cat", "q24", "' cat': +1"))),)),
        Tab("Occlusion", blocks=(Drawing("What every patch did", 2, 1, cells=(Cell(0, 0, 1, 1, 0.5),)),)),
    ))

A page shows one tab at a time and opens the others by buttons; on paper and without scripts it shows all of them. A
terminal shows the first tab, and with --verbose all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

Number = float | int  # a length in the units of a drawing


@dataclass(frozen=True)
class Shade:
    """A piece of text on a background colour: `q0` to `q24` of the sequential ramp, `d0` to `d24` of the diverging one,
    or no colour.

    Pages show `reading` under the pointer and on arrow keys. `mark` is any of `underlined`, `dotted` and `dim`,
    separated by spaces.
    """

    text: str
    colour: str = ""
    reading: str = ""
    mark: str = ""


@dataclass(frozen=True)
class ShadedText:
    """Pieces of text, joined without spaces, after an optional label."""

    pieces: tuple[Shade, ...]
    label: str = ""


@dataclass(frozen=True)
class Cell:
    """A rectangle of a drawing: orange, or blue if `against`. Pages show `reading` under the pointer."""

    x: Number
    y: Number
    width: Number
    height: Number
    opacity: float = 1.0
    against: bool = False
    reading: str = ""


@dataclass(frozen=True)
class Label:
    """Text in a drawing. `anchor` is the part of the text at x: start, middle or end. `turned` text rises steeply."""

    x: Number
    y: Number
    text: str
    anchor: str = "middle"
    turned: bool = False


@dataclass(frozen=True)
class Drawing:
    """Cells, labels and lines (x1, y1, x2, y2) in a box of `width` x `height`. Screen readers read `summary`.

    A `picture` (a data: address) is drawn beside the cells and, in grey, under them. A `broad` drawing fills its card
    and scrolls on a narrow screen. `key` says what orange and blue mean. A terminal shows `lines_of_text`, or nothing
    if it is empty.
    """

    summary: str
    width: Number
    height: Number
    cells: tuple[Cell, ...]
    labels: tuple[Label, ...] = ()
    lines: tuple[tuple[Number, Number, Number, Number], ...] = ()
    picture: str = ""
    broad: bool = False
    title: str = ""
    label: str = ""
    caption: str = ""
    key: tuple[str, ...] = ()
    lines_of_text: tuple[tuple[Shade, ...], ...] = ()


@dataclass(frozen=True)
class Tab:
    """One view. `ends` are the words at both ends of the colour ramp; a `diverging` ramp has zero in its middle."""

    title: str
    blocks: tuple[ShadedText | Drawing, ...]
    caption: str = ""
    ends: tuple[str, ...] = ()
    diverging: bool = False

    @property
    def broad(self) -> bool:
        return any(isinstance(block, Drawing) and block.broad for block in self.blocks)
