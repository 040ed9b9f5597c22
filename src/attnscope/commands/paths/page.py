"""The page of a decomposition into paths.

Bars and curves are Altair charts. The text with its arcs and the grids of heads are plain SVG with CSS classes, so that
they follow the light or dark theme. Each is laid out for phones, tablets and desktops; the style sheet shows the one
that fits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from attnscope.commands.paths.arcs import asked_at, drawn_chains, left_out, strip
from attnscope.commands.paths.carriers import IN_WORDS
from attnscope.commands.paths.chart import (
    head_length_rows,
    length_chart,
    player_chart,
    player_rows,
    reconstruction_chart,
    value_rows,
)
from attnscope.commands.paths.headline import replaced_by
from attnscope.commands.paths.record import Chain, PathReport
from attnscope.commands.paths.vocabulary import (
    chain_words,
    of_all_tokens,
    probability_words,
    quoted,
    seen_lengths,
    signed,
    target_word,
)
from attnscope.commands.paths.words import edge_lines, effect_lines, length_lines, player_words, sentences, verdict
from attnscope.core.words import count, numeral
from attnscope.reports.colours import STEPS
from attnscope.reports.document import rows
from attnscope.reports.export import WIDTHS, Drawn, drawn_to_fit
from attnscope.reports.page import page
from attnscope.reports.words import beginning_words

LETTER = 6.6  # pixels of a letter of size 11
SHOWN = 24  # heads in the table before the others are folded away
NAME = 18.0  # height of an axis title
LOWEST, HIGHEST = 20, 40  # height of a cell
TALL = 200  # height up to which cells of a grid grow
NARROWEST = 5.0  # width of a cell: a grid with more columns scrolls
MANY = 40  # rows from which cells are half as high
HALF = 520  # width of a chart that shares a row on a desktop
BAR = 100  # width from the lowest to the highest bar end beside single paths


class Cell(NamedTuple):
    x: float
    y: float
    step: int  # index in the diverging ramp
    number: str  # empty if cells are narrow
    label: str


class Label(NamedTuple):
    at: float
    text: str


@dataclass(frozen=True)
class Grid:
    """The layout of a grid of heads for one page width; `across` and `down` are axis titles."""

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
    """Return the layout of rows, each with a value and a label. `names` replaces axis titles."""
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
        else:  # NaN has the middle colour, infinity the colour of an end
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
        columns=_labels(columns, wide, LETTER * max(len(str(column)) for column in columns) + 6, left),
        rows=_labels(lines, high, 14.0, 0.0),
        across=names.get(across, across),
        down=names.get(down, down),
        reach=numeral(reach),
    )


def _labels(names: list[Any], step: float, least: float, start: float) -> tuple[Label, ...]:
    """Return all labels, or only every second, fifth, tenth and so on if they would overlap."""
    every = next(n * 10**power for power in range(9) for n in (1, 2, 5) if n * 10**power * step >= least)
    return tuple(Label(round(start + step * (k + 0.5), 2), str(name)) for k, name in enumerate(names) if k % every == 0)


class ChainLine(NamedTuple):
    """A row of the table of single paths, with its bar."""

    words: str
    adds: str
    of_token: str
    sign: str
    x: float
    width: float


def render(report: PathReport) -> str:
    """Return the page. Equal records give equal pages."""
    caption = "The sum of all paths through that many heads; negative sums go to the left."
    lengths = _beside(length_chart, report, "lengths", "Share by length", caption)
    caption = f"The output with only the paths through up to k heads{_meaning(report)}; dashed: the whole model."
    reached = _beside(reconstruction_chart, report, "reached", "When only lengths up to k count", caption)
    players = _players(report)
    _, *findings, exact = sentences(report)
    heading, *lines = length_lines(report)
    zero, chains = _chain_lines(report.top)
    rest = report.lengths[seen_lengths(report) :]
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
        left_out=f"Lengths from {rest[0].length} on add too little to be visible and are not drawn." if rest else "",
        players=players,
        share_in_words=IN_WORDS,
        values=_grids(value_rows(report), "block", "head"),
        by_length=_grids(head_length_rows(report), "length", "head", length="heads passed"),
        effects=_effects(report),
        zero=zero,
        chains=chains,
        missed=numeral(report.top_missed),
        begun=beginning_words(report.provenance),
        provenance=rows(report.provenance),
    )


def _effects(report: PathReport) -> dict[str, Any] | None:
    """Return the tables of heads that were taken out; None if none was."""
    found = report.effects
    if found is None:
        return None
    largest = f"the {len(found.heads)} with the largest first-order estimates and frozen values"
    chosen = "" if found.whole else f" Of {found.of_heads} heads, {largest} were taken out."
    heading, *lines = effect_lines(report)
    return {
        "replaced_by": replaced_by(found),
        "chosen": chosen,
        "heads": [heading, *lines[:SHOWN]],
        "more": [heading, *lines[SHOWN:]] if lines[SHOWN:] else [],
        "edges": edge_lines(report) if found.edges else [],
    }


def _beside(draw: Any, report: PathReport, name: str, title: str, caption: str) -> Drawn:
    """Draw a chart for half a row on desktops, and for a whole row on smaller screens."""

    def fitting(width: int) -> Any:
        return draw(report, width=HALF if width == WIDTHS["desk"] else width)

    return drawn_to_fit(fitting, name, title=title, caption=caption, summary=f"{title}.")


def _players(report: PathReport) -> Drawn | None:
    words = player_words(report)
    if words is None or not player_rows(report):
        return None
    return drawn_to_fit(
        lambda width: player_chart(report, width=width),
        "players",
        title="Another game: heads and MLPs as players",
        summary="Heads and MLPs of each block as players of one game.",
        caption=f"{words} Everywhere else on this page only heads are players, and MLPs belong to their blocks. Bars: "
        "the heads of a block together, and its MLP.",
    )


def _fitting(make: Any) -> dict[str, Any]:
    return {fit: make(width) for fit, width in WIDTHS.items()}


def _grids(values: Sequence[Mapping[str, Any]], across: str, down: str, **names: str) -> dict[str, Grid]:
    return _fitting(lambda width: grid(values, across, down, width, **names)) if values else {}


def _chain_lines(top: Sequence[Chain]) -> tuple[float, list[ChainLine]]:
    """Return the position of zero in units of bars, and the rows."""
    values = [chain.contribution for chain in top]
    low, high = min([0.0, *values]), max([0.0, *values])
    unit = BAR / (high - low) if high > low else 0.0
    zero = round(-low * unit, 1)
    lines = []
    for chain, value in zip(top, values, strict=True):
        width = max(round(abs(value) * unit, 1), 0.8)  # every bar is visible
        sign, x = ("minus", round(zero - width, 1)) if value < 0 else ("plus", zero)
        lines.append(ChainLine(chain_words(chain), signed(value), signed(chain.of_token), sign, x, width))
    return zero, lines


def _spoken(report: PathReport) -> str:
    """Return the text and the position of the target, for screen readers."""
    asked = asked_at(report)
    where = "" if asked is None else f" The target is at token {asked}, {quoted(report.tokens[asked])}."
    return f"{count(len(report.tokens), 'token')}: {' '.join(quoted(token) for token in report.tokens)}.{where}"


def _about_arcs(report: PathReport) -> str:
    """Explain the arcs."""
    arcs, asked = drawn_chains(report), asked_at(report)
    end = "the output" if asked is None else f"token {asked}, the position of the target"
    if not arcs:
        return f"The text as the model reads it{'' if asked is None else f'; marked is {end}'}."
    which = "The largest single path" if len(arcs) == 1 else f"The {len(arcs)} largest single paths"
    return (
        f"{which}, each as an arc from the token that contributes most along it to {end}. The width is the "
        "contribution of that token: orange adds, blue subtracts. Numbers are those of the table of single paths."
    )


def _meaning(report: PathReport) -> str:
    """Explain the axis of the reconstruction chart."""
    if not of_all_tokens(report):
        return f"; {probability_words(report)}"
    where = "" if report.position is None else f" at token {report.position}"
    return f"; distance is from the model's own output{where}, relative to it"
