"""The page of how faithful explanations are: the verdict, gaps with their intervals, and all numbers."""

from __future__ import annotations

from attnscope.records.faithfulness import Faithfulness
from attnscope.reporting.document import page, rows
from attnscope.reporting.drawing import drawn_to_fit
from attnscope.reporting.faithfulness.chart import chart, curves
from attnscope.reporting.faithfulness.words import FIRST, SECOND, difference_lines, lines, sentences, verdict


def render(found: Faithfulness) -> str:
    """The page as text. Equal records give equal pages."""
    gaps = drawn_to_fit(
        lambda width: chart(found, width=width),
        "gaps",
        title="How far the two areas are apart",
        caption="Lines: 95% of means over texts drawn again. Dashed: what a method that knows nothing has.",
        summary="Gap of every method with its interval, with whole tokens and with tokens kept in part.",
    )
    falling = drawn_to_fit(
        lambda width: curves(found, width=width),
        "curves",
        title="The answer while tokens go",
        caption="As a share of the whole answer, over the share of tokens that are gone. The area between is the gap.",
        summary="Two curves for every method: the most important tokens first, and the least important first.",
    )
    return page(
        "faithfulness.html",
        verdict=verdict(found),
        figures=[gaps, falling],
        data=found,
        findings=sentences(found)[1:],
        gaps=gaps,
        falling=falling,
        differences=difference_lines(found),
        tables=[("ranks", "Ranks", FIRST, lines(found)), ("areas", "Areas", SECOND, lines(found, SECOND))],
        provenance=rows(found.provenance),
    )
