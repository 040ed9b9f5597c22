"""Charts drawn to SVG while a page is written, and what stands around them.

The SVG is drawn in the `page` theme, whose colours are CSS variables, so one drawing serves light, dark and print.
Every mark that can be read carries its sentence (`aria-label`, from the chart's `description`), which is what the
page's script shows under the pointer, under a finger, and on arrow keys: the script knows nothing about charts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attnscope.charts.export import render
from attnscope.charts.theme import configuration, specification

WIDTHS = {"phone": 326, "tablet": 600, "desk": 1080}
"""Of whole charts with their axes and legends, on screens up to 46rem, up to 74rem, and beyond (see shell.css)."""
BROAD = 440  # pixels; what is drawn wider cannot be read at the width of a telephone
PLACES = "d|transform|viewBox|[xyr]|[xy][12]|[cdr][xy]|width|height|points"


@dataclass(frozen=True)
class Drawn:
    """A chart on a page: `name` is that of its files and unique on the page, `summary` is read to who cannot see it."""

    name: str
    title: str
    caption: str
    summary: str
    svg: str
    specification: dict[str, Any]


def drawn(chart: Any, name: str, *, title: str, caption: str = "", summary: str = "") -> Drawn:
    """A chart with its words, ready for the `figure` of `figure.html`, at the width it was drawn at."""
    document = specification(chart, "light", validate=False)
    return Drawn(name, title, caption, summary or caption or title, drawing(chart, name), document)


def drawn_to_fit(make: Callable[[int], Any], name: str, *, title: str, caption: str = "", summary: str = "") -> Drawn:
    """A chart as wide as its card on a telephone, a tablet and a desk: `make(width)` gives it for a width in pixels.

    One drawing that shrinks would shrink its letters too, so there are three, and the style sheet shows one of them.
    """
    charts = {fit: make(width) for fit, width in WIDTHS.items()}
    svg = "".join(f'<div class="fits-{fit}">{drawing(chart, f"{name}-{fit}")}</div>' for fit, chart in charts.items())
    document = specification(charts["desk"], "light", validate=False)
    return Drawn(name, title, caption, summary or caption or title, svg.replace(' class="broad"', ""), document)


def drawing(chart: Any, name: str) -> str:
    """A chart as SVG for a page, with colours from the page and the width it was drawn at.

    A drawing too wide for a narrow screen is marked `broad`, and the style sheet lets it scroll instead of shrink.
    """
    svg = numbered(slim(render(specification(chart, "page", validate=False), ".svg").decode()), name)
    found = re.search(r'viewBox="0 0 ([\d.]+) ', svg)
    assert found is not None
    broad = ' class="broad"' if float(found[1]) > BROAD else ""
    return svg.replace("<svg ", f'<svg width="{found[1]}"{broad} ', 1)


def fluid(document: dict[str, Any]) -> str:
    """A specification as SVG that grows and shrinks with its column."""
    return slim(render({**document, "config": configuration("page")}, ".svg").decode())


def numbered(svg: str, name: str) -> str:
    """Clips and gradients are numbered by how much was drawn before: here they are numbered from 0, so that equal
    charts give equal drawings, and `name` keeps those of one page apart."""
    for kind, label in (("clip", "clip"), ("gradient_", "gradient")):
        numbers: dict[str, int] = {}
        svg = re.sub(
            rf'((?: id="|url\(#)){kind}(\d+)',
            lambda found, label=label, numbers=numbers: (  # type: ignore[misc]
                f"{found[1]}{name}-{label}{numbers.setdefault(found[2], len(numbers))}"
            ),
            svg,
        )
    return svg


def slim(svg: str) -> str:
    """Drop what the stylesheet says already or what says nothing; let the drawing grow with its column."""
    svg = re.sub(r' (?:opacity="1"|pointer-events="none"|version="1.1"|xmlns:xlink="[^"]*"|class="marks")', "", svg)
    svg = re.sub(r' (?:font-family|aria-roledescription|font-size)="[^"]*"', "", svg)
    svg = re.sub(r' role="graphics-(?:object|symbol)"', "", svg)
    svg = re.sub(r'<path class="(?:background|foreground)"[^>]*/>', "", svg)
    # Hundredths of a pixel are enough for places, but not for what is written: 0.005 beside an axis is no 0.00.
    svg = re.sub(rf' (?:{PLACES})="[^"]*"(?=[^<]*>)', lambda place: re.sub(r"(\.\d\d)\d+", r"\1", place[0]), svg)
    return re.sub(
        r'(<svg [^>]*?) width="[^"]*" height="[^"]*"',
        r'\1 aria-hidden="true" focusable="false"',
        svg,
        count=1,
    )
