"""Layout of the text with its largest single paths: tokens in rows, and an arc from a token to the target's position.

A record has the heads of a path and the token that contributes most along it, but not the tokens in between. So an arc
goes from that token straight to the target, and its width is the contribution of this token. Letters have a fixed
width, so the picture is the same in every browser. Arcs never cross: of two arcs from one side, the longer runs above
the other and ends nearer to the middle of the target's token. An arc between two rows leaves one row at its edge and
enters the other at its edge.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from attnscope.commands.paths.record import Chain, PathReport
from attnscope.commands.paths.vocabulary import chain_words, of_all_tokens, signed, visible

LETTER = 7.8  # width of a monospaced letter of size 13, in pixels
PAD, GAP, EDGE = 6.0, 4.0, 4.0  # pixels inside a token, between two tokens, and around all
LONGEST = 22  # letters of a token that are shown
CHIP, BELOW, BETWEEN = 24.0, 15.0, 8.0  # height of a token and of its number, and space to the next row
LANE, LOWEST = 17.0, 16.0  # distance between arcs, and from a token to the lowest arc
SLOT, ROOMIEST = 9.0, 48.0  # distance between ends of arcs on a token, and least width of the target's token
ROUNDEST, ROUNDER = 24.0, 12.0  # radius of the lowest arc, and how much larger the radius of the next may be
COMING = 72.0  # pixels left of the target's token for arcs from other rows
STRAIGHT = 0.6  # largest share of the way to the edge that is curved
THIN, THICK = 1.5, 7.0  # width of arcs
MOST_ARCS = 10
MOST_TOKENS = 120  # in longer texts, only tokens near arcs are drawn
AROUND = 4  # tokens on either side of the end of an arc

Side = Literal["left", "right", "here"]


@dataclass(frozen=True)
class Chip:
    """A box in the layout: a token (`index` is its number), a gap of skipped tokens, or the output."""

    text: str
    kind: Literal["token", "source", "asked", "gap", "output"]
    index: int | None
    width: float
    row: int
    x: float
    y: float = 0.0

    @property
    def letters(self) -> float:
        return round(LETTER * columns(self.text), 2)


@dataclass(frozen=True)
class Arc:
    """A drawn path. `number` is its number in the table; an arc between two rows has two `strokes`."""

    number: int
    sign: Literal["plus", "minus"]
    width: float
    source: int
    strokes: tuple[str, ...]
    badges: tuple[tuple[float, float], ...]
    reading: str


@dataclass(frozen=True)
class Strip:
    """The text and its arcs for one page width."""

    width: int
    height: float
    chips: tuple[Chip, ...]
    arcs: tuple[Arc, ...]


@dataclass
class _Route:
    """A path during layout: where it begins, and its lane (height) in each row."""

    number: int
    chain: Chain
    side: Side
    source: Chip
    lanes: dict[int, int] = field(default_factory=dict)
    turns: dict[int, float] = field(default_factory=dict)  # radius of its quarter ellipses, by row
    start: float = 0.0
    end: float = 0.0


def drawn_chains(report: PathReport) -> list[tuple[int, Chain]]:
    """Return the largest paths with their numbers in the table."""
    known = [(n, chain) for n, chain in enumerate(report.top, 1) if 0 <= chain.position < len(report.tokens)]
    return known[:MOST_ARCS]


def asked_at(report: PathReport) -> int | None:
    """Return the position of the target, or None if the target belongs to the whole text."""
    inside = report.position is not None and report.position < len(report.tokens)
    return report.position if inside and not of_all_tokens(report) else None


def left_out(report: PathReport) -> bool:
    return len(report.tokens) > MOST_TOKENS


def strip(report: PathReport, width: int) -> Strip:
    chains = drawn_chains(report)
    target = asked_at(report)
    chips = _rows(_items(report, {chain.position for _, chain in chains}, target), len(chains), width)
    by_index = {chip.index: chip for chip in chips if chip.index is not None}
    end = chips[-1] if target is None else by_index[target]
    routes = [_Route(n, chain, _side(by_index[chain.position], end), by_index[chain.position]) for n, chain in chains]
    _give_lanes(routes, end)
    _give_ends(routes, end)
    _give_turns(routes, end, width)
    rows = range(chips[-1].row + 1)
    lanes = [max((route.lanes[row] + 1 for route in routes if row in route.lanes), default=0) for row in rows]
    tops, y = [], 0.0
    for count in lanes:
        y += LOWEST + LANE * (count - 1) + 9 if count else 0.0
        tops.append(y)
        y += CHIP + BELOW + BETWEEN
    placed = tuple(Chip(c.text, c.kind, c.index, c.width, c.row, c.x, tops[c.row]) for c in chips)
    most = max((abs(route.chain.of_token) for route in routes), default=0.0)
    return Strip(width, y, placed, tuple(_arc(route, end, tops, width, most) for route in routes))


def columns(text: str) -> int:
    """Return the width of a text in letters: wide letters count as two, accents as zero."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _items(report: PathReport, sources: set[int], target: int | None) -> Iterable[tuple[str, str, int | None]]:
    """Yield text, kind and index of the boxes in order; consecutive skipped tokens are one gap."""
    matter = {*sources, *([] if target is None else [target])}
    near = {i + d for i in matter for d in range(-AROUND, AROUND + 1)}
    kept = [i for i in range(len(report.tokens)) if not left_out(report) or i in near]
    last = -1
    for i in [*kept, len(report.tokens)]:
        if i - last > 1:
            yield f"… {i - last - 1:,} more …", "gap", None
        if i < len(report.tokens):
            yield report.tokens[i], "asked" if i == target else "source" if i in sources else "token", i
        last = i
    if target is None:
        yield "output", "output", None


def _rows(items: Iterable[tuple[str, str, int | None]], arcs: int, width: int) -> list[Chip]:
    """Place tokens from left to right, row after row."""
    chips: list[Chip] = []
    row, x = 0, EDGE
    for word, kind, index in items:
        text = visible(word) if word.strip(" ") else "␣" * len(word)  # spaces alone would be invisible
        if columns(text) > LONGEST:
            text = next(text[:n] for n in range(len(text), -1, -1) if columns(text[:n]) < LONGEST) + "…"
        wide = LETTER * max(columns(text), 1) + 2 * PAD
        if kind in ("asked", "output"):
            wide = max(wide, ROOMIEST, SLOT * (arcs + 2))
        if x + wide > width - EDGE and x > EDGE:
            row, x = row + 1, EDGE
        if kind in ("asked", "output") and row and arcs:
            x = max(x, min(COMING, width - EDGE - wide))
        chips.append(Chip(text, kind, index, round(wide, 2), row, round(x, 2)))  # type: ignore[arg-type]
        x += wide + GAP
    return chips


def _side(source: Chip, end: Chip) -> Side:
    if source is end:
        return "here"
    return "left" if (source.row, source.x) < (end.row, end.x) else "right"


def _give_lanes(routes: Sequence[_Route], end: Chip) -> None:
    """Set the lanes of arcs, so that in every row the shortest is lowest."""
    for side in ("left", "right", "here"):
        some = [route for route in routes if route.side == side]
        nearest = sorted(some, key=lambda one: (one.source.row, one.source.x), reverse=side != "right")
        used: dict[int, int] = {}
        for route in nearest:
            for row in {route.source.row, end.row}:
                route.lanes[row] = used.get(row, 0)
                used[row] = route.lanes[row] + 1


def _give_ends(routes: Sequence[_Route], end: Chip) -> None:
    """Set the ends of arcs, so that none cross.

    On the target's token, arcs from the left end on the left (the lowest first), arcs from the right on the right, and
    arcs that start on this token are between them.
    """

    def of(side: Side) -> list[_Route]:
        return sorted((route for route in routes if route.side == side), key=lambda r: r.lanes[end.row])

    left, here, right = of("left"), of("here"), of("right")
    slots = len(left) + 2 * len(here) + len(right)

    def slot(number: int) -> float:
        return round(end.x + end.width * (number + 1) / (slots + 1), 2)

    for number, route in enumerate(left):
        route.end = slot(number)
    for number, route in enumerate(reversed(here)):
        route.start, route.end = slot(len(left) + number), slot(len(left) + 2 * len(here) - 1 - number)
    for number, route in enumerate(reversed(right)):
        route.end = slot(len(left) + 2 * len(here) + number)
    for chip in {id(route.source): route.source for route in (*left, *right)}.values():
        leaving = [route for route in routes if route.source is chip]
        leaving.sort(key=lambda r: r.lanes[chip.row], reverse=leaving[0].side == "left")
        for number, route in enumerate(leaving):
            route.start = round(chip.x + chip.width * (number + 1) / (len(leaving) + 1), 2)


def _give_turns(routes: Sequence[_Route], end: Chip, width: int) -> None:
    """Set the radius of turns: as large as there is room for, but not so large that an arc crosses the one below.

    Of two quarter ellipses that end `SLOT` apart, the outer one stays outside if it is at most `ROUNDER` wider: at the
    height of the inner one it has come inwards by less than 0.6 of its width, for up to `MOST_ARCS` lanes.
    """
    for row in {row for route in routes for row in route.lanes}:
        for side in ("left", "right", "here"):
            some = sorted((r for r in routes if r.side == side and row in r.lanes), key=lambda r: r.lanes[row])
            below = ROUNDEST
            for route in some:
                if route.source.row == end.row:
                    room = abs(route.end - route.start) / 2
                else:
                    foot = route.start if row == route.source.row else route.end
                    room = width - foot if (side == "left") == (row == route.source.row) else foot
                    room *= STRAIGHT
                below = round(min(room, below + ROUNDER), 2)
                route.turns[row] = below


def _arc(route: _Route, end: Chip, tops: Sequence[float], width: int, most: float) -> Arc:
    chain, row = route.chain, route.source.row

    def level(at: int) -> float:
        return tops[at] - LOWEST - LANE * route.lanes[at]

    if row == end.row:
        strokes: tuple[str, ...] = (_bow(route.start, route.end, tops[row], level(row), route.turns[row]),)
        badges: tuple[tuple[float, float], ...] = ((round((route.start + route.end) / 2, 2), level(row)),)
    else:
        leaves, comes = (float(width), 0.0) if route.side == "left" else (0.0, float(width))
        strokes = (
            _bend(route.start, leaves, tops[row], level(row), route.turns[row]),
            _bend(route.end, comes, tops[end.row], level(end.row), route.turns[end.row]),
        )
        badges = (
            (_inside(route.start, leaves, route.turns[row], width), level(row)),
            (_inside(route.end, comes, route.turns[end.row], width), level(end.row)),
        )
    part = abs(chain.of_token) / most if most else 0.0
    return Arc(
        number=route.number,
        sign="minus" if chain.of_token < 0 else "plus",
        width=round(THIN + (THICK - THIN) * part, 2),
        source=chain.position,
        strokes=strokes,
        badges=badges,
        reading=_reading(route.number, chain),
    )


def _inside(foot: float, edge: float, turn: float, width: int) -> float:
    """Return the middle of the straight part of a bend, inside the picture."""
    middle = (foot + turn + edge) / 2 if edge > foot else (foot - turn + edge) / 2
    return round(min(max(middle, 10.0), width - 10.0), 2)


def _bow(start: float, end: float, bottom: float, top: float, turn: float) -> str:
    """Draw up, across and down: two quarter ellipses, with a straight line between them."""
    sweep, sign = (1, 1) if end > start else (0, -1)
    quarter = f"A{turn:g} {bottom - top:g} 0 0 {sweep}"
    across = f"{quarter} {start + sign * turn:g} {top:g}H{end - sign * turn:g}"
    return f"M{start:g} {bottom:g}{across}{quarter} {end:g} {bottom:g}"


def _bend(foot: float, edge: float, bottom: float, top: float, turn: float) -> str:
    """Draw a line from a token upwards, then to the edge of its row."""
    sweep, sign = (1, 1) if edge > foot else (0, -1)
    return f"M{foot:g} {bottom:g}A{turn:g} {bottom - top:g} 0 0 {sweep} {foot + sign * turn:g} {top:g}H{edge:g}"


def _reading(number: int, chain: Chain) -> str:
    words = f"{number}. {chain_words(chain)}: {signed(chain.contribution)}"
    if signed(chain.of_token) == signed(chain.contribution):
        return words
    return f"{words}; of that, {signed(chain.of_token)} begins at this token"
