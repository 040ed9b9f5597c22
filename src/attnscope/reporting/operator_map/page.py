"""The page of an operator's map: the verdict, the map, and what is most to the last row."""

from __future__ import annotations

from attnscope.charts.operator_map import MOST_SIDE, operator_map, subtitle
from attnscope.records.operator_map import OperatorMap
from attnscope.reporting.beginning import beginning_words
from attnscope.reporting.document import page, rows
from attnscope.reporting.drawing import drawn_to_fit
from attnscope.reporting.operator_map.words import last_row, lines, sentences, verdict


def render(found: OperatorMap) -> str:
    """The page as text. Equal records give equal pages."""
    several = max(len(found.rows), len(found.tokens)) > MOST_SIDE
    shared = " Neighbours share a cell, which shows their mean." if several else ""
    picture = drawn_to_fit(
        lambda width: operator_map(found, width=width),
        "map",
        title="Rows of the output by tokens",
        caption=f"{subtitle(found).capitalize()}. Every row is divided by its largest number.{shared}",
        summary="What every token is to every row of the output.",
    )
    return page(
        "operator_map.html",
        verdict=verdict(found),
        figures=[picture],
        data=found,
        findings=sentences(found)[1:],
        picture=picture,
        last=last_row(found),
        lines=lines(found),
        begun=beginning_words(found.provenance),
        provenance=rows(found.provenance),
    )
