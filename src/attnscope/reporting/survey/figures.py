"""Depth profiles for the page: Altair specifications drawn to SVG while the page is written.

The SVG is drawn in the `page` theme, whose colours are CSS variables, so one drawing serves light, dark and
print. Every reading carries its sentence (`aria-label`), which is what the page's script shows on hover and
reads out on arrow keys: the script knows nothing about charts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pandas as pd
from altair.utils.schemapi import debug_mode

from attnscope.charts.comparison import comparison_profile
from attnscope.charts.depth_profile import depth_profile
from attnscope.charts.export import render
from attnscope.charts.rows import Panel, depth_rows, panels
from attnscope.charts.theme import configuration, specification
from attnscope.core.card import Card
from attnscope.core.numerals import numeral
from attnscope.records.survey.survey import Survey
from attnscope.reporting.survey.words import site_title

WIDTH, HEIGHT = 340, 150
BROAD = 440  # pixels; what is drawn wider cannot be read at the width of a telephone
PLACES = "d|transform|viewBox|[xyr]|[xy][12]|[cdr][xy]|width|height|points"


@dataclass(frozen=True)
class Figure:
    """A drawn chart, the words around it, and the specification it was drawn from."""

    name: str
    card: Card
    place: str
    site: str
    summary: str
    svg: str
    specification: dict[str, Any]


def profiles(survey: Survey, table: pd.DataFrame) -> tuple[Figure, ...]:
    """A profile of every measure in every stack."""
    figures = []
    with debug_mode(False):  # the tests validate every chart; here it would cost more than drawing them
        for panel in panels(table, survey.stacks):
            card = survey.cards[panel.measure]
            place = {"stack": panel.stack, "site": panel.site}
            chart = depth_profile(table, card, **place, width=WIDTH, height=HEIGHT, title=False)
            figures.append(_figure(card, panel, chart, _summary(table, card, panel), "profile"))
    return tuple(figures)


def paired_profiles(
    survey: Survey, first: pd.DataFrame, second: pd.DataFrame, names: tuple[str, str]
) -> tuple[Figure, ...]:
    """Both surveys' lines, for every panel that both have."""
    shared = set(panels(second))
    figures = []
    with debug_mode(False):
        for panel in (p for p in panels(first, survey.stacks) if p in shared):
            card = survey.cards[panel.measure]
            place = {"stack": panel.stack, "site": panel.site}
            chart = comparison_profile(
                first, second, card, names=names, **place, width=WIDTH, height=HEIGHT, title=False
            )
            summary = f"{card.title} against depth in both surveys."
            figures.append(_figure(card, panel, chart, summary, "pair"))
    return tuple(figures)


def _figure(card: Card, panel: Panel, chart: Any, summary: str, kind: str) -> Figure:
    document = specification(chart, "light", validate=False)
    drawn = {**document, "config": configuration("page")}
    return Figure(
        name=f"{kind}-{panel.stack}-{panel.site}-{panel.measure}",
        card=card,
        place=site_title(panel.stack, panel.site),
        site=panel.site,
        summary=summary,
        svg=slim(render(drawn, ".svg").decode()),
        specification=document,
    )


def drawing(chart: Any, name: str) -> str:
    """A chart as SVG for a page, with colours from the page and the width it was drawn at.

    Clips and gradients are numbered by how much was drawn before: here they are numbered from 0, so that equal charts
    give equal drawings, and `name` keeps those of one page apart. A drawing too wide for a narrow screen is marked
    `broad`, and the style sheet lets it scroll instead of shrink.
    """
    svg = slim(render(specification(chart, "page", validate=False), ".svg").decode())
    for kind, label in (("clip", "clip"), ("gradient_", "gradient")):
        numbers: dict[str, int] = {}
        svg = re.sub(
            rf'((?: id="|url\(#)){kind}(\d+)',
            lambda found, label=label, numbers=numbers: (  # type: ignore[misc]
                f"{found[1]}{name}-{label}{numbers.setdefault(found[2], len(numbers))}"
            ),
            svg,
        )
    found = re.search(r'viewBox="0 0 ([\d.]+) ', svg)
    assert found is not None
    broad = ' class="broad"' if float(found[1]) > BROAD else ""
    return svg.replace("<svg ", f'<svg width="{found[1]}"{broad} ', 1)


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


def _summary(table: pd.DataFrame, card: Card, panel: Panel) -> str:
    """What a person who cannot see the chart should know."""
    rows = depth_rows(table, card, panel)
    rows = rows[rows["part"] == rows["part"].iloc[0]].dropna(subset=["mean"])
    if rows.empty:
        return f"{card.title} against depth: no finite number."
    first, last = rows.iloc[0], rows.iloc[-1]
    low, high = rows.loc[rows["mean"].idxmin()], rows.loc[rows["mean"].idxmax()]
    words = [f"{numeral(row['mean'])} at layer {row['depth']:g}" for row in (first, last, low, high)]
    return f"{card.title} against depth: {words[0]}, {words[1]}; smallest {words[2]}, largest {words[3]}."
