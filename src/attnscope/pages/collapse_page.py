"""The page of a collapse: what is left of the differences between tokens, bounds beside it; one file, no script.

`data` is `Collapse.to_json()`. The chart is drawn while the page is written, in the theme whose colours are CSS
variables. All text is escaped, and the Content-Security-Policy allows the one style sheet by its hash and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope import __version__
from attnscope.pages.collapse_words import bound_lines, end_lines, published_words, sentences

if TYPE_CHECKING:
    from attnscope.charts.collapse_curves import Reference


def write_collapse(data: Mapping[str, Any], path: Path | str, *, published: Reference | None = None) -> Path:
    """Write the page; with `published`, the paper's curves stand in the chart and the differences beside it."""
    from attnscope.charts.export import write_file

    path = Path(path)
    write_file(path, render_collapse(data, published=published).encode("utf-8", errors="replace"))
    return path


def render_collapse(data: Mapping[str, Any], *, published: Reference | None = None) -> str:
    """The page as text. Equal data give equal pages."""
    from attnscope.charts.collapse_curves import collapse_chart
    from attnscope.charts.numerals import numeral
    from attnscope.pages.document import environment, flat, page_style, policy
    from attnscope.pages.figures import drawing

    templates = environment()
    style = page_style(templates)
    chart = collapse_chart(data, published=published, bounds=True, title=False)
    told, bounds = sentences(data), bound_lines(data)
    curves = [
        (curve["title"], ["–" if v is None else numeral(float(f"{v:.3g}")) for v in curve["mean"]], curve["n"][0])
        for curve in data["curves"].values()
    ]
    return templates.get_template("collapse.html").render(
        policy=policy(style),
        style=style,
        version=__version__,
        data=data,
        corpus=data["provenance"].get("corpus", {}).get("name", "ready batches"),
        sequences=_sequences(data),
        sentences=told,
        compared=() if published is None else published_words(data, published.curves, published.model),
        summary=" ".join(told),
        svg=drawing(chart, "collapse"),
        caption=_caption(data, published),
        curves=curves,
        depths=range(max(len(curve["mean"]) for curve in data["curves"].values())),
        bounds=bounds,
        skips=[
            (row["layer"], numeral(row["growth"]), numeral(1 - row["strength"]), numeral(1 + row["strength"]))
            for row in data["skip_bounds"]
        ],
        ends=end_lines(data),
        provenance=flat(data["provenance"]),
    )


def _sequences(data: Mapping[str, Any]) -> int:
    return max(int(n) for curve in data["curves"].values() for n in curve["n"])


def _caption(data: Mapping[str, Any], published: Reference | None) -> str:
    """What lines, bands and dashes are."""
    from attnscope.survey.words import count

    over = count(_sequences(data), "sequence")
    bands = f"Lines are means over {over}, bands reach from the tenth to the ninetieth percentile (p10 to p90) of them."
    dashed = "" if published is None else f" Dashed: {published.model} as published in arXiv:2103.03404."
    below = " Below: one layer of attention alone, the truth beside its bounds (medians)." if data["bounds"] else ""
    return f"{bands}{dashed}{below}"
