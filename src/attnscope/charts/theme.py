"""How charts look: light, dark, and `page`, whose colours are the CSS variables of the report.

Charts name roles (`spread`, `line`, `broken`) and named colour ranges, never colours, so one specification
serves all themes. In the `page` theme a colour is the text `var(--...)`: the SVG that comes out follows the
reader's choice of light or dark without being drawn twice.
"""

from __future__ import annotations

from typing import Any

from attnscope.charts.palette import SERIES, diverging, sequential
from attnscope.core.errors import RefusalError, nearest

FONT = '-apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'
WITHOUT_A_PAGE = ("light", "dark")
THEMES = (*WITHOUT_A_PAGE, "page")  # the last is made of variables that only our pages know

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
    """The Vega-Lite document of a chart in a theme, as plain data; without one, in its own, or else light."""
    document: dict[str, Any] = chart.to_dict(validate=validate)
    own = getattr(chart, "config", None)
    if theme is None and isinstance(own, dict):  # `dressed` put it there
        return {**document, "config": own}
    return {**document, "config": configuration(theme or "light")}


def dressed(chart: Any, theme: str) -> Any:
    """The chart with the look of a theme (light or dark) in it, for a notebook, which draws charts itself."""
    if theme not in WITHOUT_A_PAGE:
        raise RefusalError(f"There is no theme called '{theme}'.{nearest(theme, WITHOUT_A_PAGE)}")
    copy = chart.copy(deep=False)
    copy.config = configuration(theme)
    return copy


def configuration(theme: str) -> dict[str, Any]:
    """The Vega-Lite `config` of a theme."""
    if theme not in THEMES:
        raise RefusalError(f"There is no theme called '{theme}'.{nearest(theme, THEMES)}")
    ink = _INK[theme]
    page = theme == "page"
    series = [f"var(--series-{i})" for i in range(6)] if page else list(SERIES[theme])
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
        # A mark's own default would win over a style's colour, so the defaults are set as well.
        "mark": {"color": series[0]},
        "rule": {"color": ink["alarm"]},
        "text": {"color": ink["ink"]},
        "style": {
            "spread": {"opacity": 0.18},
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
