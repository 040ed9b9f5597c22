"""The page of how faithful explanations are: the verdict, gaps with their intervals, and all numbers."""

from __future__ import annotations

from attnscope.records.faithfulness import Faithfulness
from attnscope.reporting.document import page, rows
from attnscope.reporting.drawing import drawn_to_fit
from attnscope.reporting.faithfulness.chart import chart
from attnscope.reporting.faithfulness.words import HEADING, lines, sentences, verdict


def render(found: Faithfulness) -> str:
    """The page as text. Equal records give equal pages."""
    gaps = drawn_to_fit(
        lambda width: chart(found, width=width),
        "gaps",
        title="How far the two areas are apart",
        caption="Lines: 95% of means over texts drawn again. Dashed: what a method that knows nothing has.",
        summary="Gap of every method with its interval.",
    )
    return page(
        "faithfulness.html",
        verdict=verdict(found),
        figures=[gaps],
        data=found,
        findings=sentences(found)[1:],
        gaps=gaps,
        heading=HEADING,
        lines=lines(found),
        provenance=rows(found.provenance),
    )
