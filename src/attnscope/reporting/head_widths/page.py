"""The page of a model's head widths: the answer, a map of all heads, and every number; one file."""

from __future__ import annotations

from attnscope.charts.head_width_map import head_width_map
from attnscope.records.head_widths import HeadWidths
from attnscope.reporting.document import page, rows
from attnscope.reporting.drawing import drawn_to_fit
from attnscope.reporting.head_widths.words import accuracy_words, head_lines, sentences, title_words, verdict


def render(found: HeadWidths) -> str:
    """The page as text."""
    figures = [
        drawn_to_fit(
            lambda width: head_width_map(found, width=width),
            "head_widths",
            title="Width found for what each head attends to",
            caption=f"{title_words(found)}. The widest of the texts counts; ✕ where none was found in the time given.",
        )
    ]
    return page(
        "head_widths.html",
        verdict=verdict(found),
        figures=figures,
        data=found,
        accuracy=accuracy_words(found),
        about=title_words(found),
        sentences=sentences(found)[1:],
        drawings=figures,
        lines=head_lines(found),
        provenance=rows(
            {
                "model": found.model,
                "texts": found.texts,
                "tokens": found.tokens,
                "seconds": found.seconds,
                "interrupted": found.interrupted,
                "attnscope": found.attnscope,
            }
        ),
    )
