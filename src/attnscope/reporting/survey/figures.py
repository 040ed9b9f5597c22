"""Depth profiles for the page of a survey: one small chart for every measure of every stack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd
from altair.utils.schemapi import debug_mode

from attnscope.charts.depth_profile import depth_profile
from attnscope.charts.rows import Panel, depth_rows, depth_words, panels
from attnscope.charts.theme import specification
from attnscope.core.card import Card
from attnscope.core.numerals import numeral
from attnscope.records.survey.survey import Survey
from attnscope.reporting.drawing import Drawn, fluid
from attnscope.reporting.survey.words import site_title

WIDTH, HEIGHT = 268, 150  # with its axis no wider than a card on a telephone: letters never shrink


@dataclass(frozen=True)
class Profile(Drawn):
    """A profile and where it was measured."""

    site: str


def profiles(survey: Survey, table: pd.DataFrame) -> tuple[Profile, ...]:
    """A profile of every measure in every stack."""
    figures = []
    with debug_mode(False):  # the tests validate every chart; here it would cost more than drawing them
        for panel in panels(table, survey.stacks):
            card = survey.cards[panel.measure]
            place = {"stack": panel.stack, "site": panel.site}
            chart = depth_profile(table, card, **place, width=WIDTH, height=HEIGHT, title=False)
            place_words = site_title(panel.stack, panel.site, alone=len(survey.stacks) == 1)
            figures.append(_profile(card, panel, chart, _summary(table, card, panel), "profile", place_words))
    return tuple(figures)


def _profile(card: Card, panel: Panel, chart: Any, summary: str, kind: str, place: str) -> Profile:
    document = specification(chart, "light", validate=False)
    return Profile(
        name=f"{kind}-{panel.stack}-{panel.site}-{panel.measure}",
        title=card.title,
        caption=place,
        summary=summary,
        svg=fluid(document),
        specification=document,
        site=panel.site,
    )


def _summary(table: pd.DataFrame, card: Card, panel: Panel) -> str:
    """What a person who cannot see the chart should know."""
    rows = depth_rows(table, card, panel)
    rows = rows[rows["part"] == rows["part"].iloc[0]].dropna(subset=["mean"])
    if rows.empty:
        return f"{card.title} against depth: no finite number."
    first, last = rows.iloc[0], rows.iloc[-1]
    low, high = rows.loc[rows["mean"].idxmin()], rows.loc[rows["mean"].idxmax()]
    end = float(rows["depth"].max())
    words = [
        f"{numeral(row['mean'])} ({depth_words(card, panel, float(row['depth']), end)})"
        for row in (first, last, low, high)
    ]
    return f"{card.title} against depth: {words[0]}, {words[1]}; smallest {words[2]}, largest {words[3]}."
