"""The figures of a survey's page: depth profiles as small charts, and maps of blocks x heads.

A map is one SVG path per colour step (`reports/colours.py`), at seven characters a cell. Thirty maps of a thousand
heads stay small and need no script, and the style sheet adapts their colours to light, dark and print.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from attnscope.commands.atlas.ranges import Reference, reference
from attnscope.commands.scan.survey.readings import largest
from attnscope.commands.scan.survey.survey import Survey
from attnscope.commands.scan.words import site_title
from attnscope.core.card import Card
from attnscope.core.words import numeral
from attnscope.reports.colours import BROKEN, MISSING, STEPS, Scale, scale, strokes
from attnscope.reports.export import Drawn, fluid
from attnscope.reports.rows import Panel, depth_rows, depth_words, head_rows, panel_rows, panels, part_title
from attnscope.reports.survey_charts import depth_specification
from attnscope.reports.theme import specification

MOST_PARTS = 5  # lines of a chart; of a measure with more parts, such as outlier_channels, only the first is drawn
WIDTH, HEIGHT = 268, 150  # pixels with axis; fits a phone screen, so text is never scaled down


@dataclass(frozen=True)
class Profile(Drawn):
    """The chart of one measure against depth, with its stack and site."""

    site: str
    usual: str = ""  # the range in real models, in words


def profiles(survey: Survey, table: pd.DataFrame) -> tuple[Profile, ...]:
    """Return a profile of every measure in every stack."""
    made = []
    for panel in panels(table, survey.stacks):
        card = survey.cards[panel.measure]
        drawn_parts = card.parts if len(card.parts) <= MOST_PARTS else card.parts[:1]
        rows = depth_rows(table[table["part"].isin(drawn_parts)], card, panel)
        usual = reference(survey, panel.measure, card.parts[0], panel.stack, panel.site)
        band = None if usual is None else (usual.low, usual.high)
        drawn = depth_specification(rows, card, panel, width=WIDTH, height=HEIGHT, usual=band)
        document = specification(drawn, "light")
        made.append(
            Profile(
                name=f"profile-{panel.stack}-{panel.site}-{panel.measure}",
                title=card.title,
                caption=site_title(panel.stack, panel.site, alone=len(survey.stacks) == 1),
                summary=_summary(rows, card, panel),
                svg=fluid(document),
                specification=document,
                site=panel.site,
                usual="" if usual is None else usual.words,
            )
        )
    return tuple(made)


def _summary(rows: pd.DataFrame, card: Card, panel: Panel) -> str:
    """Describe the chart for a screen reader."""
    rows = rows[rows["part"] == rows["part"].iloc[0]].dropna(subset=["mean"])
    if rows.empty:
        return f"{card.title} against depth: no finite number."
    first, last = rows.iloc[0], rows.iloc[-1]
    low, high = rows.iloc[int(rows["mean"].argmin())], rows.iloc[int(rows["mean"].argmax())]
    end = float(rows["depth"].max())
    words = [
        f"{numeral(row['mean'])} ({depth_words(card, panel, float(row['depth']), end)})"
        for row in (first, last, low, high)
    ]
    return f"{card.title} against depth: {words[0]}, {words[1]}; smallest {words[2]}, largest {words[3]}."


FULL_DETAIL = 60_000  # above this many cells in all maps, the page holds means without percentiles
_USUAL = {"other": "most like head", "key": "mostly on key"}  # text before the number in a label


@dataclass(frozen=True)
class HeadMap:
    """One measure of one stack as a grid: arrays are [block, head], NaN for missing heads."""

    card: Card
    part: str
    stack: str
    site: str
    layers: int
    heads: int
    scale: Scale
    place: str
    numbers: dict[str, np.ndarray]
    usual: dict[str, np.ndarray]
    reference: Reference | None = None

    @property
    def band(self) -> tuple[float, float] | None:
        """The usual range in real models, as shares of the colour scale in percent."""
        if self.reference is None:
            return None
        low, high = self.scale.share(np.array([self.reference.low, self.reference.high])).tolist()
        return (round(100 * low, 1), round(100 * max(0.0, high - low), 1)) if math.isfinite(low + high) else None

    @property
    def title(self) -> str:
        return self.card.title if self.part == "value" else f"{self.card.title}, {part_title(self.part)}"

    @property
    def ramp(self) -> str:
        """Return `d` for colours that diverge from zero, else `q`."""
        return "d" if self.scale.diverging else "q"

    def steps(self) -> np.ndarray:
        """Return the colour step of every cell: MISSING if nothing was measured, BROKEN if NaN or infinity occurred."""
        step = np.rint(self.scale.share(self.numbers["mean"]) * (STEPS - 1))
        step = np.where(np.isfinite(step), step, MISSING)
        return np.where(self.numbers["nonfinite"] == 0, step, BROKEN).astype(int)

    def drawing(self) -> str:
        """Return the SVG: blocks to the right, heads downwards, one path per colour."""
        return strokes(self.steps(), self.ramp)

    def to_json(self, detail: bool) -> dict[str, Any]:
        keep = ("mean", "p10", "p90", "min", "max") if detail else ("mean",)
        broken = np.flatnonzero(self.numbers["nonfinite"])
        alarm = self.card.alarm if self.part == self.card.parts[0] else None
        return {
            "measure": self.card.name,
            "part": self.part,
            "title": self.title,
            "unit": self.card.unit,
            "summary": self.card.summary,
            "stack": self.stack,
            "site": self.site,
            "place": self.place,
            "layers": self.layers,
            "heads": self.heads,
            "low": self.scale.low,
            "high": self.scale.high,
            "log": self.scale.log,
            "ramp": self.ramp,
            "why": self.scale.why,
            "alarm": alarm.threshold if alarm else None,
            "worry": "above" if alarm and alarm.relation == ">" else "below",
            "reference": self.reference
            and {
                "low": self.reference.low,
                "high": self.reference.high,
                "words": self.reference.words,
            },
            **{name: figures(self.numbers[name]) for name in keep},
            "broken": {int(i): int(self.numbers["nonfinite"].flat[i]) for i in broken},
            "usual": {_USUAL.get(n, f"mostly {n}"): v.ravel().tolist() for n, v in self.usual.items() if detail},
        }


def head_maps(survey: Survey, table: pd.DataFrame) -> tuple[HeadMap, ...]:
    """Return a map of every measure of heads."""
    found = []
    for panel in panels(table, survey.stacks):
        if panel.site == "stream":
            continue
        card = survey.cards[panel.measure]
        here = panel_rows(table, panel)
        for part in card.parts:
            if ((here["part"] == part) & here["head"].notna()).any():
                found.append(_map(survey, here, card, panel, part))
    return tuple(found)


def differences(first: HeadMap, second: HeadMap) -> np.ndarray | None:
    """Return the second map minus the first, or None if their shapes differ."""
    if (first.layers, first.heads) != (second.layers, second.heads):
        return None
    return np.asarray(second.numbers["mean"] - first.numbers["mean"])


def difference_drawing(change: np.ndarray) -> tuple[str, float]:
    """Return the SVG of a difference, and its largest absolute value."""
    sizes = np.abs(change[np.isfinite(change)])
    reach = float(sizes.max(initial=0.0)) or 1.0
    step = np.rint((np.clip(change / reach, -1, 1) + 1) / 2 * (STEPS - 1))
    return strokes(np.where(np.isfinite(step), step, MISSING).astype(int), "d"), reach


def figures(numbers: np.ndarray) -> list[float | None]:
    """Return numbers row by row with four significant figures, None for NaN and infinity."""
    return [float(f"{v:.4g}") if math.isfinite(v) else None for v in numbers.ravel().tolist()]


def _map(survey: Survey, here: pd.DataFrame, card: Card, panel: Panel, part: str) -> HeadMap:
    more = here.loc[(here["part"] == part) & here["head"].notna(), ["layer", "head", "min", "max", "usual"]]
    rows = head_rows(here, panel, part).merge(more.astype({"head": int}), on=["layer", "head"])
    layers, heads = int(rows["layer"].max()) + 1, int(rows["head"].max()) + 1
    at = rows["layer"].to_numpy(int), rows["head"].to_numpy(int)
    numbers = {name: np.full((layers, heads), np.nan) for name in ("mean", "p10", "p90", "min", "max")}
    for name, grid in numbers.items():
        grid[at] = rows[name].to_numpy(float)
    numbers["nonfinite"] = np.zeros((layers, heads), int)
    numbers["nonfinite"][at] = rows["nonfinite"].to_numpy(int)
    usual: dict[str, np.ndarray] = {}
    for layer, head, labels in zip(*at, rows["usual"], strict=True):
        for label, value in (labels or {}).items():
            usual.setdefault(str(label), np.full((layers, heads), -1))[layer, head] = value
    span = scale(numbers["mean"], card, largest(survey, card, panel.stack, panel.site))
    stack_and_site = site_title(panel.stack, panel.site, alone=len(survey.stacks) == 1)
    known = reference(survey, card.name, part, panel.stack, panel.site)
    return HeadMap(card, part, panel.stack, panel.site, layers, heads, span, stack_and_site, numbers, usual, known)
