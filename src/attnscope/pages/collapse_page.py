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
    from attnscope.charts.export import render
    from attnscope.charts.numerals import numeral
    from attnscope.charts.theme import configuration, specification
    from attnscope.pages.document import environment, flat, page_style, policy
    from attnscope.pages.figures import slim

    templates = environment()
    style = page_style(templates)
    chart = collapse_chart(data, published=published, bounds=True, title=False)
    document = specification(chart, "light", validate=False)
    told = sentences(data)
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
        sequences=max(max(curve["n"]) for curve in data["curves"].values()),
        sentences=told,
        compared=() if published is None else published_words(data, published.curves, published.model),
        summary=" ".join(told),
        svg=slim(render({**document, "config": configuration("page")}, ".svg").decode()),
        curves=curves,
        depths=range(max(len(curve["mean"]) for curve in data["curves"].values())),
        bounds=bound_lines(data),
        skips=[
            (row["layer"], numeral(row["growth"]), numeral(1 - row["strength"]), numeral(1 + row["strength"]))
            for row in data["skip_bounds"]
        ],
        ends=end_lines(data),
        provenance=flat(data["provenance"]),
    )
