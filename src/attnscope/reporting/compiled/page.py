"""The page of a compiled head: what it reaches, its picture, its certificate, bounds, and what was tried; one file.

No script: the Content-Security-Policy allows the one style sheet by its hash and nothing else. The maps are pictures
with colours of their own, so they are drawn twice, and the style sheet shows the one of the reader's theme.
"""

from __future__ import annotations

from attnscope import __version__
from attnscope.charts.pattern_panels import pooling_words
from attnscope.records.compiled import Compiled
from attnscope.reporting.compiled.chart import chart
from attnscope.reporting.compiled.words import (
    BOUND_HEADING,
    TRY_HEADING,
    bound_lines,
    certificate_lines,
    number,
    sentences,
    size_words,
    try_lines,
)
from attnscope.reporting.document import environment, flat, page_style, policy
from attnscope.reporting.survey.figures import drawing


def render(compiled: Compiled) -> str:
    """The page as text. Equal records give equal pages."""
    templates = environment()
    style = page_style(templates) + templates.get_template("compiled.css").render()
    told = sentences(compiled)
    return templates.get_template("compiled.html").render(
        policy=policy(style),
        style=style,
        version=__version__,
        data=compiled,
        size=size_words(compiled),
        sentences=told,
        summary=f"Target, realised pattern and their difference. {told[1]}",
        caption=_caption(compiled),
        light=drawing(chart(compiled, title=False), "light"),
        dark=drawing(chart(compiled, theme="dark", title=False), "dark"),
        certificate=certificate_lines(compiled),
        bound_heading=BOUND_HEADING,
        bounds=bound_lines(compiled),
        logit_floor=number(compiled.bounds.logit_floor),
        try_heading=TRY_HEADING,
        tries=try_lines(compiled),
        provenance=_provenance(compiled),
    )


def _caption(compiled: Compiled) -> str:
    cell = pooling_words((compiled.target.n, compiled.target.n_keys))
    pooled = f" {cell[0].upper()}{cell[1:]}." if cell else ""
    return (
        "Rows are queries, columns are keys. The error has a logarithmic colour: a leak of a thousandth is seen beside "
        f"one of a half.{pooled}"
    )


def _provenance(compiled: Compiled) -> list[tuple[str, str]]:
    return flat(
        {
            "pattern": compiled.target.name,
            "construction": compiled.method,
            "seed": compiled.seed,
            "seconds": compiled.seconds,
            "notes": compiled.notes,
            "attnscope": compiled.attnscope,
        }
    )
