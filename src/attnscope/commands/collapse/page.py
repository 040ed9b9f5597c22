"""The page of a collapse: what is left of the differences between tokens, the curves, bounds in a fold; one file."""

from __future__ import annotations

import math

from attnscope.commands.collapse.chart import bounded, bounds_chart, curves_chart, far
from attnscope.commands.collapse.record import Collapse, Published
from attnscope.commands.collapse.record import published as published_curves
from attnscope.commands.collapse.terminal import (
    END_HEADING,
    SKIP_HEADING,
    bound_lines,
    end_lines,
    skip_lines,
    skip_words,
)
from attnscope.commands.collapse.words import (
    corpus_words,
    published_remarks,
    published_words,
    remarks,
    sentences,
    shape_words,
    variant_sentences,
    verdict,
)
from attnscope.core.words import count, numeral
from attnscope.reports.document import rows
from attnscope.reports.export import Drawn, drawn_to_fit
from attnscope.reports.page import page

BOUNDED = {
    "diameter": (
        "Largest distance of two tokens",
        "The diameter of what one block of attention alone writes: the largest distance of two of its tokens, and "
        "bounds on it from the patterns that were seen and from weights alone. Medians over sequences.",
    ),
    "residual": (
        "Residual, and the paper's theorem 2.2",
        "The residual of what one block of attention alone writes, beside what theorem 2.2 of arXiv:2103.03404 bounds "
        "it by, from weights and input. Medians over sequences.",
    ),
}


def render(found: Collapse, *, published: str | None = None) -> str:
    """The page as text; with `published` (BERT, Albert or XLNet), the paper's curves stand in the chart and differences
    beside it. Equal records give equal pages."""
    theirs = None if published is None else published_curves(published, found.weights)
    curves, bounds = _curves(found, theirs), _bounds(found)
    told = variant_sentences(found)
    heading, *lines = bound_lines(found) or [()]
    return page(
        "collapse.html",
        verdict=verdict(found),
        figures=(*curves, *bounds),
        styles=("collapse.css",),
        data=found,
        shape=shape_words(found),
        corpus=corpus_words(found),
        variants=told,
        more=sentences(found)[len(told) :],
        remarks=remarks(found),
        compared=() if theirs is None else (*published_words(found, theirs), *published_remarks(theirs)),
        curves=curves,
        mean_heading=("block", *(curve.title for curve in found.curves.values())),
        means=_means(found),
        bounds=bounds,
        bound_heading=heading,
        bound_lines=lines,
        skip_heading=SKIP_HEADING,
        skip_lines=skip_lines(found),
        skip_words=skip_words(found),
        end_heading=END_HEADING,
        end_lines=end_lines(found),
        provenance=[*rows(found.provenance), *(("note", note) for note in found.notes)],
    )


def _means(found: Collapse) -> list[tuple[str, ...]]:
    """A row for every block, so that a table of many blocks grows downwards."""
    curves = [curve.mean for curve in found.curves.values()]
    last = max(map(len, curves)) - 1
    return [
        (
            "end" if depth == last else str(depth),
            *(numeral(mean[depth], 3) if depth < len(mean) and math.isfinite(mean[depth]) else "–" for mean in curves),
        )
        for depth in range(last + 1)
    ]


def _curves(found: Collapse, theirs: Published | None) -> list[Drawn]:
    """On a logarithmic axis, and where that squeezes what stays up together, on a linear one too."""
    summary = " ".join(variant_sentences(found))
    over = count(max(int(n) for curve in found.curves.values() for n in curve.n), "sequence")
    dashed = "" if theirs is None else f" Dashed: {theirs.model} as published in arXiv:2103.03404."
    caption = (
        f"Lines are means over {over}, bands reach from the tenth to the ninetieth percentile (p10 to p90) of "
        f"them.{dashed}"
    )
    figures = [
        drawn_to_fit(
            lambda width: curves_chart(found, width, published=theirs),
            "collapse",
            title="What is left, block after block",
            caption=caption,
            summary=summary,
        )
    ]
    if far(found):
        figures.append(
            drawn_to_fit(
                lambda width: curves_chart(found, width, published=theirs, log=False),
                "collapse-linear",
                title="The same on a linear axis",
                caption="Here lines that stay up can be told apart.",
                summary=summary,
            )
        )
    return figures


def _bounds(found: Collapse) -> list[Drawn]:
    return [
        drawn_to_fit(
            lambda width, of=of: bounds_chart(found, of, width),  # type: ignore[misc]
            f"bounds-{of}",
            title=BOUNDED[of][0],
            caption=BOUNDED[of][1],
        )
        for of in bounded(found)
    ]
