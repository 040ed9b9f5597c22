"""Themes of charts: light, dark, and `page`, whose colours are the CSS variables of the report.

Charts refer to roles (`spread`, `line`, `broken`) and named colour ranges, never to colours, so one specification
serves all themes. In the `page` theme a colour is the text `var(--...)`, so one SVG serves light and dark pages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attnscope.core.errors import RefusalError, nearest
from attnscope.core.words import TINY
from attnscope.reports.colours import SERIES, diverging, sequential

FEW_DECADES = 2.5  # up to this many decades, an axis has room for ticks at 1, 2 and 5 times every power of ten
MOST_TICKS = 8


def tick_labels(values: Iterable[float]) -> dict[str, Any]:
    """Return options of a linear axis: labels in scientific notation if all values are tiny, else the default."""
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    if largest == 0 or largest >= TINY:
        return {}
    return {"labelExpr": "datum.value == 0 ? '0' : format(datum.value, '.3~e')"}


def power_axis(low: float, high: float) -> dict[str, Any]:
    """Return options of a logarithmic axis: ticks at 1, 2 and 5 times each power of ten, or at up to eight powers."""
    exponents = range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)
    if math.log10(high / low) <= FEW_DECADES:
        values = [m * 10.0**e for e in range(exponents.start - 1, exponents.stop) for m in (1, 2, 5)]
        values = [float(f"{v:.1g}") for v in values if low * (1 - 1e-9) <= v <= high * (1 + 1e-9)]
        if len(values) < 2:  # less than one power of ten
            return {"tickCount": 4, "format": "~g"}
    else:
        step = max(1, math.ceil(len(exponents) / MOST_TICKS))
        values = [10.0**e for e in exponents if e % step == 0]
    label = "datum.value >= 0.001 && datum.value < 10000 ? format(datum.value, '~g') : format(datum.value, '.0e')"
    return {"values": values, "labelExpr": label}


def round_below(value: float, decades: float) -> float:
    """Return where a logarithmic axis starts: at the largest power of ten at or below a value, or, if the axis spans
    few decades, at 1, 2 or 5 times that power."""
    power = 10.0 ** math.floor(math.log10(value) + 1e-9)
    return max(m * power for m in ((1, 2, 5) if decades <= FEW_DECADES else (1,)) if m * power <= value * (1 + 1e-9))


LINE = 14.0  # least pixels between two names at the ends of lines
LETTER = 6.4  # pixels of an average letter at 11 px, rounded up, so that no name is cut


def end_labels(
    ends: Mapping[str, tuple[int | float, float]], *, log: bool, domain: tuple[float, float], height: int
) -> list[dict[str, Any]]:
    """Return {name, x, y}, in axis units, to write each line's name at its end. The names replace a legend.

    Names of lines that end close together are moved apart, no further than needed: `end_labels({"whole model": (12,
    0.6), "attention only": (12, 0.5)}, log=True, domain=(0.1, 1), height=300)`.
    """
    low, high = map(math.log10, domain) if log else domain
    order = sorted(ends, key=lambda name: -ends[name][1])
    wanted = [height * (high - (math.log10(ends[name][1]) if log else ends[name][1])) / (high - low) for name in order]
    rows = []
    for name, pixel in zip(order, moved_apart(wanted, LINE, 0.0, float(height)), strict=True):
        value = high - pixel * (high - low) / height
        rows.append({"name": name, "x": ends[name][0], "y": 10.0**value if log else value})
    return rows


def label_room(names: Sequence[str]) -> int:
    """Return the pixels that names need beside a chart."""
    return math.ceil(LETTER * max(map(len, names), default=0)) + 14


def moved_apart(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return increasing positions at least `gap` apart, inside low..high if they fit, with the least squared movement.

    After subtracting i * gap from position i, the positions must not decrease: pool neighbours that do (isotonic
    regression).
    """
    pools: list[list[float]] = []
    for number, place in enumerate(places):
        pools.append([place - number * gap])
        while len(pools) > 1 and _mean(pools[-2]) > _mean(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    level = [_mean(pool) for pool in pools for _ in pool]
    most = max(low, high - gap * (len(places) - 1))
    return [min(max(place, low), most) + number * gap for number, place in enumerate(level)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def fit(chart: Any, width: int) -> Any:
    """Return a chart that is `width` pixels wide, including its axes and legends."""
    return chart.properties(width=width, autosize={"type": "fit-x", "contains": "padding"})


SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
FONT = '-apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'
WITHOUT_A_PAGE = ("light", "dark")
THEMES = (*WITHOUT_A_PAGE, "page")  # `page` uses CSS variables that only our pages define

_INK: dict[str, dict[str, str]] = {
    "light": {
        "ink": "#1b2430",
        "soft": "#5d6875",
        "line": "#dfe4ea",
        "surface": "#ffffff",
        "alarm": "#b3261e",
    },
    "dark": {
        "ink": "#e8edf3",
        "soft": "#9aa7b6",
        "line": "#2c3644",
        "surface": "#131a23",
        "alarm": "#ff8a7a",
    },
    "page": {
        "ink": "var(--ink)",
        "soft": "var(--soft)",
        "line": "var(--line)",
        "surface": "transparent",
        "alarm": "var(--critical)",
    },
}


def specification(chart: Any, theme: str | None = "light", *, validate: bool = True) -> dict[str, Any]:
    """Return the Vega-Lite document of a chart, or of plain data, in a theme; by default the chart's own theme, or
    light."""
    document: dict[str, Any] = _finite(chart if isinstance(chart, dict) else chart.to_dict(validate=validate))
    own = getattr(chart, "config", None)
    if theme is None and isinstance(own, dict):  # added by `dressed`
        return {**document, "config": own}
    return {**document, "config": configuration(theme or "light")}


def _finite(part: Any) -> Any:
    """Return part of a document with None for NaN and infinity, which JSON lacks."""
    if isinstance(part, dict):
        return {name: _finite(value) for name, value in part.items()}
    if isinstance(part, list | tuple):
        return [_finite(value) for value in part]
    return None if isinstance(part, float) and not math.isfinite(part) else part


def dressed(chart: Any, theme: str) -> Any:
    """Return the chart with a light or dark theme included, for notebooks, which draw charts themselves."""
    if theme not in WITHOUT_A_PAGE:
        raise RefusalError(f"There is no theme called '{theme}'.{nearest(theme, WITHOUT_A_PAGE)}")
    copy = chart.copy(deep=False)
    copy.config = configuration(theme)
    return copy


def configuration(theme: str) -> dict[str, Any]:
    """Return the Vega-Lite `config` of a theme."""
    if theme not in THEMES:
        raise RefusalError(f"There is no theme called '{theme}'.{nearest(theme, THEMES)}")
    ink = _INK[theme]
    page = theme == "page"
    series = [f"var(--series-{i})" for i in range(len(SERIES["light"]))] if page else list(SERIES[theme])
    ramp = list(sequential("light" if page else theme))
    two_sided = list(diverging("light" if page else theme))
    return {
        "background": ink["surface"],
        "font": FONT,
        "view": {"stroke": None},
        "padding": 4 if page else 16,
        "title": {
            "color": ink["ink"],
            "subtitleColor": ink["soft"],
            "anchor": "start",
            "fontSize": 14,
            "fontWeight": 600,
            "subtitleFontSize": 11,
            "offset": 10,
        },
        "axis": {
            "labelColor": ink["soft"],
            "titleColor": ink["soft"],
            "titleFontWeight": "normal",
            "titleFontSize": 11,
            "labelFontSize": 11,
            "gridColor": ink["line"],
            "domainColor": ink["line"],
            "tickColor": ink["line"],
            "tickSize": 4,
            "labelPadding": 4,
        },
        "axisX": {"grid": False},
        "axisY": {"domain": False, "ticks": False, "minExtent": 34},
        "legend": {
            "labelColor": ink["soft"],
            "titleColor": ink["soft"],
            "titleFontWeight": "normal",
            "titleFontSize": 11,
            "labelFontSize": 11,
        },
        "header": {"labelColor": ink["ink"], "titleColor": ink["soft"]},
        "range": {"category": series, "heatmap": ramp, "ramp": ramp, "diverging": two_sided},
        # A mark's own default takes precedence over the colour of a style, so the defaults are set as well.
        "mark": {"color": series[0]},
        "rule": {"color": ink["alarm"]},
        "text": {"color": ink["ink"]},
        "style": {
            "spread": {"opacity": 0.18},
            "usual": {"opacity": 0.09, "color": "#808890"},
            "line": {"strokeWidth": 2, "strokeJoin": "round", "strokeCap": "round"},
            "reading": {"opacity": 1},
            "threshold": {"strokeDash": [3, 3], "strokeWidth": 1, "opacity": 0.8},
            "broken": {"color": ink["alarm"], "strokeWidth": 1.5},
            "missing": {"color": ink["line"], "stroke": ink["alarm"], "strokeWidth": 1},
            "others": {"color": ink["soft"], "opacity": 0.35},
            "own": {"stroke": ink["surface"], "strokeWidth": 1, "size": 90, "opacity": 1},
            "hollow": {"fill": "var(--surface)" if page else ink["surface"], "opacity": 1},
            "number": {"color": ink["ink"], "fontSize": 11},
        },
    }
