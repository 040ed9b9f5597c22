"""The page of a decomposition into paths: the verdict, the text with its largest paths, findings, pictures, numbers.

Bars and curves are Altair charts drawn to SVG while the page is written, with colours from CSS variables. The text with
its arcs and grids of heads are plain SVG whose parts carry classes, so that they follow light and dark. Each is laid
out for a telephone, a tablet and a desk, and the style sheet shows the one that fits. All text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnscope.commands.paths.arcs import asked_at, drawn_chains, left_out, strip
from attnscope.commands.paths.carriers import IN_WORDS
from attnscope.commands.paths.chart import length_chart, player_chart, reconstruction_chart
from attnscope.commands.paths.chart_rows import head_length_rows, player_rows, seen_lengths, signed, value_rows
from attnscope.commands.paths.record import Chain, PathReport
from attnscope.commands.paths.vocabulary import chain_words, of_all_tokens, probability_words, quoted, target_word
from attnscope.commands.paths.words import length_lines, player_words, sentences, verdict
from attnscope.core.words import count, numeral
from attnscope.reports.colours import STEPS
from attnscope.reports.document import rows
from attnscope.reports.export import WIDTHS, Drawn, drawn_to_fit
from attnscope.reports.page import page
from attnscope.reports.words import beginning_words

# Grids of heads as plain SVG: where every cell, label and name stands for a width of the page.
#
# Cells carry classes of the page's diverging ramp, so that they follow light and dark. They grow until the grid fills
# its card; where they are wide enough their numbers are written into them, and every cell carries its sentence.

LETTER = 6.6  # pixels that a letter of 11 takes at most, on average
NAME = 18.0  # of an axis
LOWEST, HIGHEST = 20, 40  # of a cell
TALL = 200  # pixels that a grid may grow to where its rows do not need more
NARROWEST = 5.0  # of a cell: a grid of more columns than fit is scrolled
MANY = 40  # rows: cells are half as high


@dataclass(frozen=True)
class Cell:
    """One place: its step of the ramp, the number in it (or nothing), and what it says."""

    x: float
    y: float
    step: int
    number: str
    label: str


@dataclass(frozen=True)
class Label:
    at: float
    text: str


@dataclass(frozen=True)
class Grid:
    """A grid for one width; `across` and `down` name its axes."""

    width: float
    height: float
    left: float
    cell_width: float
    cell_height: float
    cells: tuple[Cell, ...]
    columns: tuple[Label, ...]
    rows: tuple[Label, ...]
    across: str
    down: str
    reach: str  # the largest value of either sign

    @property
    def bottom(self) -> float:
        return self.height - 2 * NAME


def grid(rows: Sequence[Mapping[str, Any]], across: str, down: str, width: int, **names: str) -> Grid:
    """`rows` are those of a chart: a value and its label at every place. `names` are other names of the axes."""
    columns, lines = (list(dict.fromkeys(row[name] for row in rows)) for name in (across, down))
    left = NAME + LETTER * max(len(str(line)) for line in lines) + 8
    wide = max(NARROWEST, round((width - left - 2) / len(columns), 2))
    high = LOWEST / 2 if len(lines) > MANY else float(max(LOWEST, min(HIGHEST, round(wide), TALL // len(lines))))
    numbers = [numeral(row["value"], 3) for row in rows]
    if LETTER * max(map(len, numbers)) + 6 > wide or high < LOWEST:
        numbers = [""] * len(rows)
    reach = max((abs(row["value"]) for row in rows if math.isfinite(row["value"])), default=0.0)
    cells = []
    for row, number in zip(rows, numbers, strict=True):
        value = row["value"]
        if math.isfinite(value):
            step = round(STEPS // 2 * value / reach) if reach else 0
        else:  # the middle colour for what is no number, the ends for infinities
            step = 0 if math.isnan(value) else int(math.copysign(STEPS // 2, value))
        x, y = left + wide * columns.index(row[across]), high * lines.index(row[down])
        cells.append(Cell(round(x, 2), round(y, 2), STEPS // 2 + step, number, row["label"]))
    return Grid(
        width=round(left + wide * len(columns) + 2, 2),
        height=high * len(lines) + 2 * NAME,
        left=left,
        cell_width=wide,
        cell_height=high,
        cells=tuple(cells),
        columns=_labels(columns, wide, LETTER * max(len(str(one)) for one in columns) + 6, left),
        rows=_labels(lines, high, 14.0, 0.0),
        across=names.get(across, across),
        down=names.get(down, down),
        reach=numeral(reach),
    )


def _labels(names: list[Any], step: float, least: float, start: float) -> tuple[Label, ...]:
    """So many that they do not run into each other: all, or every second, fifth, tenth and so on."""
    every = next(n * 10**power for power in range(9) for n in (1, 2, 5) if n * 10**power * step >= least)
    shown = [(place, name) for place, name in enumerate(names) if place % every == 0]
    return tuple(Label(round(start + step * (place + 0.5), 2), str(name)) for place, name in shown)


HALF = 520  # pixels of a chart that stands beside another: on a desk two share a row
BAR = 100  # units of the small bars beside single paths


@dataclass(frozen=True)
class ChainLine:
    """A row of the table of single paths; its bar begins at zero and goes to either side."""

    words: str
    adds: str
    of_token: str
    sign: str
    x: float
    width: float


def render(report: PathReport) -> str:
    """The page as text. Equal records give equal pages."""
    lengths = _beside(
        lambda width: length_chart(report, width=width),
        "lengths",
        title="Share by length",
        caption="All paths through that many heads, added up; what is below zero goes to the left.",
    )
    reached = _beside(
        lambda width: reconstruction_chart(report, width=width),
        "reached",
        title="When only lengths up to k count",
        caption=f"What the model makes of the shortest paths alone{_meaning(report)}; dashed: the whole model.",
    )
    players = _players(report)
    _, *findings, exact = sentences(report)
    heading, *lines = length_lines(report)
    zero, chains = _chain_lines(report.top)
    return page(
        "paths.html",
        verdict=verdict(report),
        figures=[lengths, reached, *([players] if players else [])],
        styles=("paths.css",),
        data=report,
        findings=findings,
        exact=exact,
        strips=_fitting(lambda width: strip(report, width)) if report.tokens else {},
        spoken=_spoken(report),
        about_arcs=_about_arcs(report),
        shortened=left_out(report),
        word=target_word(report),
        heading=heading,
        lines=lines,
        lengths=lengths,
        reached=reached,
        left_out=_left_out(report),
        players=players,
        share_in_words=IN_WORDS,
        values=_grids(value_rows(report), "block", "head"),
        by_length=_grids(head_length_rows(report), "length", "head", length="heads passed"),
        zero=zero,
        chains=chains,
        missed=numeral(report.top_missed),
        begun=beginning_words(report.provenance),
        provenance=rows(report.provenance),
    )


def _beside(make: Any, name: str, *, title: str, caption: str) -> Drawn:
    """A chart that has half a row on a desk, and all of it on smaller screens."""

    def fitting(width: int) -> Any:
        return make(HALF if width == WIDTHS["desk"] else width)

    return drawn_to_fit(fitting, name, title=title, caption=caption, summary=f"{title}.")


def _players(report: PathReport) -> Drawn | None:
    said = player_words(report)
    if said is None or not player_rows(report):
        return None
    return drawn_to_fit(
        lambda width: player_chart(report, width=width),
        "players",
        title="Another game: heads and MLPs as players",
        summary="Heads and MLPs of each block as players of one game.",
        caption=f"{said} Everywhere else on this page MLPs belong to their blocks and heads alone are players, because "
        "paths are told apart by their heads. Bars: a block's heads together, and its MLP.",
    )


def _fitting(make: Any) -> dict[str, Any]:
    return {fit: make(width) for fit, width in WIDTHS.items()}


def _grids(values: Sequence[Mapping[str, Any]], across: str, down: str, **names: str) -> dict[str, Grid]:
    return _fitting(lambda width: grid(values, across, down, width, **names)) if values else {}


def _chain_lines(top: Sequence[Chain]) -> tuple[float, list[ChainLine]]:
    """Where zero is among `BAR` units, and the rows."""
    values = [chain.contribution for chain in top]
    low, high = min([0.0, *values]), max([0.0, *values])
    unit = BAR / (high - low) if high > low else 0.0
    zero = round(-low * unit, 1)
    lines = []
    for chain, value in zip(top, values, strict=True):
        width = max(round(abs(value) * unit, 1), 0.8)  # what is there is seen
        lines.append(
            ChainLine(
                words=chain_words(chain),
                adds=signed(value),
                of_token=signed(chain.of_token),
                sign="minus" if value < 0 else "plus",
                x=round(zero - width, 1) if value < 0 else zero,
                width=width,
            )
        )
    return zero, lines


def _spoken(report: PathReport) -> str:
    """The text for who cannot see it, and where it is asked."""
    asked = asked_at(report)
    where = "" if asked is None else f" The model is asked at token {asked}, {quoted(report.tokens[asked])}."
    return f"{count(len(report.tokens), 'token')}: {' '.join(quoted(token) for token in report.tokens)}.{where}"


def _about_arcs(report: PathReport) -> str:
    """What arcs are, and where they end."""
    arcs, asked = drawn_chains(report), asked_at(report)
    end = "the output, which is of all tokens" if asked is None else f"token {asked}, at which the model is asked"
    if not arcs:
        return (
            "The text as the model reads it." if asked is None else f"The text as the model reads it; marked is {end}."
        )
    which = "The largest single path" if len(arcs) == 1 else f"The {len(arcs)} largest single paths"
    return (
        f"{which}, each as an arc from the token that most of it begins at to {end}. Its width is what that "
        "token alone sends along these heads: orange adds, blue takes away. Numbers are those of the table of single "
        "paths."
    )


def _meaning(report: PathReport) -> str:
    """What is drawn over k."""
    if not of_all_tokens(report):
        return f"; {probability_words(report)}"
    where = "" if report.position is None else f" at token {report.position}"
    return f"; distance is from the model's own output{where}, relative to it"


def _left_out(report: PathReport) -> str:
    rest = report.lengths[seen_lengths(report) :]
    return f"Lengths from {rest[0].length} on add too little to be seen and are not drawn." if rest else ""
