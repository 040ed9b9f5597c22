"""The page of a collapse: what is left of the differences between tokens, bounds beside it; one file."""

from __future__ import annotations

import math

from attnscope.charts.collapse_curves import collapse_chart
from attnscope.core.numerals import numeral
from attnscope.core.words import count
from attnscope.records.collapse import Collapse
from attnscope.records.published import published as published_curves
from attnscope.reporting.collapse.words import bound_lines, end_lines, published_words, sentences, verdict
from attnscope.reporting.document import page, rows
from attnscope.reporting.drawing import drawn


def render(found: Collapse, *, published: str | None = None) -> str:
    """The page as text; with `published` (BERT, Albert or XLNet), the paper's curves stand in the chart and differences
    beside it. Equal records give equal pages."""
    theirs = None if published is None else published_curves(published, found.weights)
    chart = collapse_chart(found, published=theirs, bounds=True, title=False)
    told, bounds = sentences(found), bound_lines(found)
    curves = [
        (curve.title, [numeral(float(f"{v:.3g}")) if math.isfinite(v) else "–" for v in curve.mean], curve.n[0])
        for curve in found.curves.values()
    ]
    picture = drawn(
        chart,
        "collapse",
        title="Residual against depth",
        caption=_caption(found, published=theirs.model if theirs else None),
        summary=" ".join(told),
    )
    return page(
        "collapse.html",
        verdict=verdict(found),
        figures=(picture,),
        data=found,
        corpus=found.provenance.get("corpus", {}).get("name", "ready batches"),
        sequences=_sequences(found),
        sentences=told,
        compared=() if theirs is None else published_words(found, theirs),
        picture=picture,
        curves=curves,
        depths=range(max(len(curve.mean) for curve in found.curves.values())),
        bounds=bounds,
        skips=[
            (row.layer, numeral(row.growth), numeral(1 - row.strength), numeral(1 + row.strength))
            for row in found.skip_bounds
        ],
        ends=end_lines(found),
        provenance=rows(found.provenance),
    )


def _sequences(found: Collapse) -> int:
    return max(int(n) for curve in found.curves.values() for n in curve.n)


def _caption(found: Collapse, *, published: str | None) -> str:
    """What lines, bands and dashes are."""
    over = count(_sequences(found), "sequence")
    bands = f"Lines are means over {over}, bands reach from the tenth to the ninetieth percentile (p10 to p90) of them."
    dashed = "" if published is None else f" Dashed: {published} as published in arXiv:2103.03404."
    below = " Below: one layer of attention alone, the truth beside its bounds (medians)." if found.bounds else ""
    return f"{bands}{dashed}{below}"
