"""The page of a compiled head: what it reaches, its picture, its certificate, bounds, and what was tried; one file.

The maps are pictures with colours of their own, so they are drawn twice, and the style sheet shows the one of the
reader's theme.
"""

from __future__ import annotations

from dataclasses import replace

from attnscope.commands.compile.chart import maps, pattern_panels, pooling_words
from attnscope.commands.compile.record import Compiled
from attnscope.commands.compile.words import (
    BOUND_HEADING,
    TRY_HEADING,
    bound_lines,
    certificate_lines,
    number,
    sentences,
    size_words,
    try_lines,
    verdict,
)
from attnscope.reports.document import rows
from attnscope.reports.export import Drawn, drawn_to_fit
from attnscope.reports.page import page


def render(compiled: Compiled) -> str:
    """The page as text. Equal records give equal pages."""
    told = sentences(compiled)
    picture = _picture(compiled)
    return page(
        "compiled.html",
        verdict=verdict(compiled),
        figures=(picture,),
        styles=("compiled.css",),
        data=compiled,
        size=size_words(compiled),
        sentences=told[1:],
        picture=picture,
        certificate=certificate_lines(compiled),
        bound_heading=BOUND_HEADING,
        bounds=bound_lines(compiled),
        logit_floor=number(compiled.bounds.logit_floor),
        try_heading=TRY_HEADING,
        tries=try_lines(compiled),
        provenance=_provenance(compiled),
    )


def _picture(compiled: Compiled) -> Drawn:
    """Drawn for both themes, and shown in one."""
    shown, size = maps(compiled), (compiled.target.n, compiled.target.n_keys)
    light, dark = (
        drawn_to_fit(
            lambda width, theme=theme: pattern_panels(*shown, size=size, title="", theme=theme, width=width),  # type: ignore[misc]
            theme,
            title="Target, realised pattern, and their difference",
            caption=_caption(compiled),
        )
        for theme in ("light", "dark")
    )
    return replace(
        light,
        name="pattern",
        svg=f'<div class="for-light">{light.svg}</div><div class="for-dark">{dark.svg}</div>',
    )


def _caption(compiled: Compiled) -> str:
    cell = pooling_words((compiled.target.n, compiled.target.n_keys))
    pooled = f" {cell[0].upper()}{cell[1:]}." if cell else ""
    return (
        "Rows are queries, columns are keys. The error has a logarithmic colour: a leak of a thousandth is seen beside "
        f"one of a half.{pooled}"
    )


def _provenance(compiled: Compiled) -> list[tuple[str, str]]:
    return rows(
        {
            "pattern": compiled.target.name,
            "construction": compiled.method,
            "seed": compiled.seed,
            "seconds": compiled.seconds,
            "notes": compiled.notes,
            "attnscope": compiled.attnscope,
        }
    )
