"""The document of an operator's map."""

from __future__ import annotations

import math

from attnscope.commands.operator.record import OperatorMap
from attnscope.commands.paths.vocabulary import signed, visible
from attnscope.core.words import count, numeral
from attnscope.reports.document import Document, Figure, Section, Table, drawn_by, rows
from attnscope.reports.words import Verdict, beginning_words

BACKGROUND = (
    "With attention patterns, deviations of norms and gates of activations frozen at this input, the model is a linear "
    "map plus constants. This chart shows that map with its channels collapsed to one number: the influence of every "
    "token on every row of the output."
)
MOST_SIDE = 40  # cells along a side of the picture
TOP = 10


def document(found: OperatorMap) -> Document:
    shared = " Neighbours share a cell, which shows their mean."
    several = max(len(found.rows), len(found.tokens)) > MOST_SIDE
    figure = Figure(
        "map",
        "Rows of the output by tokens",
        drawn_by("attnscope.commands.operator.chart:chart", found),
        caption=f"{map_words(found).capitalize()}. Every row is divided by its largest number.{shared * several}",
        summary="The influence of every token on every row of the output.",
    )
    last = tuple((visible(word), str(place), signed(number)) for place, word, number in found.top(-1, TOP))
    return Document(
        verdict(found),
        f"What {found.model} does to its input, as one operator",
        about=(
            " · ".join(
                (
                    f"{found.model}, {found.class_name}",
                    found.part,
                    f"map by {found.map}",
                    found.dtype,
                    *beginning_words(found.provenance),
                )
            ),
        ),
        sections=(
            Section("Findings", sentences=_sentences(found)),
            Section("Map", background=(BACKGROUND,), figures=(figure,)),
            Section(
                f"The largest numbers of {_last_row(found)}",
                tables=(Table(("token", "place", found.map), last),),
                link="Last row",
            ),
            Section("The largest numbers of every row", tables=(_every_row(found),), link="All rows", detail=True),
        ),
        provenance=rows(found.provenance),
    )


def _every_row(found: OperatorMap) -> Table:
    lines = (
        (
            str(row) if name == str(row) else f"{row} '{visible(name)}'",
            ", ".join(f"{place} '{visible(word)}' {signed(number)}" for place, word, number in found.top(row, TOP)),
        )
        for row, name in enumerate(found.rows)
    )
    return Table(("row", "tokens, the largest number first"), tuple(lines), align="ll")


def verdict(found: OperatorMap) -> Verdict:
    """Name the token with the largest number in most rows."""
    best = [_largest(row) for row in found.values]
    known = [place for place in best if place is not None]
    if not known:
        return Verdict("warning", "No number of this map is finite.")
    place = max(sorted(set(known)), key=known.count)
    itself = sum(place == row for row, place in enumerate(best)) if len(found.rows) == len(found.tokens) else 0
    token = f"'{visible(found.tokens[place])}' (token {place})"
    most = f"{token} has the largest number in {known.count(place)} of {count(len(found.rows), 'row')}"
    own = "; 1 token has it in its own row" if itself == 1 else f"; {itself} tokens have it in their own row"
    return Verdict("note", f"By {found.map}, {most}{own if itself else ''}.")


def _sentences(found: OperatorMap) -> tuple[str, ...]:
    sentences = [f"The map shows {found.title}, in {found.part} of {found.model}."]
    if found.errors is None:
        sentences.append(f"It is exact, and took {_passes(found)} through the frozen model.")
    else:
        sentences.append(
            f"It is an estimate from {found.probes} random probes for each token ({_passes(found)} through the "
            f"frozen model); the median standard error is {_relative_error(found)} of the number."
        )
    if found.constants is not None and found.totals is not None:
        shares = [c / t for c, t in zip(found.constants, found.totals, strict=True) if t and math.isfinite(c / t)]
        if shares:
            middle = sorted(shares)[len(shares) // 2]
            sentences.append(
                f"Tokens and constants add up to the norm of each row; constants (biases and shifts of norms) are "
                f"{numeral(round(middle, 3), 3)} of it in the median row."
            )
    return (*sentences, *found.notes)


def map_words(found: OperatorMap) -> str:
    how = "" if found.probes is None else f", from {found.probes} probes"
    return f"map by {found.map}: {found.title}{how}"


def _last_row(found: OperatorMap) -> str:
    name = found.rows[-1]
    number = len(found.rows) - 1
    return f"row {number}" if name == str(number) else f"row {number}, '{visible(name)}'"


def _passes(found: OperatorMap) -> str:
    return "one pass" if found.products == 1 else f"{found.products:,} passes"


def _largest(row: tuple[float, ...]) -> int | None:
    known = [place for place, number in enumerate(row) if math.isfinite(number)]
    return max(known, key=lambda place: row[place]) if known else None


def _relative_error(found: OperatorMap) -> str:
    assert found.errors is not None
    pairs = zip(sum(found.values, ()), sum(found.errors, ()), strict=True)
    shares = sorted(e / abs(v) for v, e in pairs if v and math.isfinite(v) and math.isfinite(e))
    return f"{100 * shares[len(shares) // 2]:.2g}%" if shares else "unknown"
