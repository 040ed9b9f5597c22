"""The report: one HTML file that needs nothing else, opens at once, and can be mailed, printed and kept.

Charts are drawn when the page is written, not when it is read. A page with Vega inside would carry 0.9 MB
of script, ask for `unsafe-eval` (or an interpreter on top) and take a second to draw what never changes.
Here every profile is an Altair specification turned into SVG by vl-convert (the specification is in the
page too, to be saved from it), and maps of layers and heads are plain HTML with a short script for hover,
filter and click-through. What comes out for 30 layers x 9 heads is well under a megabyte, follows light and
dark through CSS variables, and prints.

Nothing in the page can reach the network or run what a model name or a corpus says: text is escaped by
Jinja, data is JSON with its angle brackets escaped, and the Content-Security-Policy allows the one script
and the one style sheet by their SHA-256 and nothing else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from attnscope import __version__
from attnscope.core.finding import SEVERITIES, Finding
from attnscope.records.comparison import Comparison, compare
from attnscope.records.survey.diagnose import diagnose
from attnscope.records.survey.survey import Survey
from attnscope.records.survey.thresholds import Thresholds

MOST_CHANGES = 12


def render(
    survey: Survey,
    *,
    findings: tuple[Finding, ...] | None = None,
    other: Survey | str | Path | None = None,
    thresholds: Thresholds | None = None,
) -> str:
    """The page as text; with `other`, a comparison of the two surveys is in it. Equal surveys give equal pages."""
    from attnscope.reporting.document import environment, flat, page_style, policy
    from attnscope.reporting.survey.figures import profiles
    from attnscope.reporting.survey.headlines import headlines
    from attnscope.reporting.survey.maps import FULL_DETAIL, head_maps
    from attnscope.reporting.survey.words import corpus_words, missing_words, model_name, note_words

    findings = diagnose(survey, thresholds) if findings is None else findings
    table = survey.table()
    maps = head_maps(survey, table)
    detail = sum(m.layers * m.heads for m in maps) <= FULL_DETAIL
    comparison = None
    if other is not None:
        comparison = _compared(compare(survey, other, thresholds), table, maps)
    figures = profiles(survey, table)
    templates = environment()
    style = page_style(templates)
    script = files("attnscope.reporting").joinpath("templates/page.js").read_text("utf-8")
    drawn = (*figures, *(comparison.figures if comparison else ()))
    data = {
        "maps": [m.to_json(detail) for m in maps],
        "changes": comparison.changes_by_map if comparison else [],
        "names": list(comparison.names) if comparison else [],
        "findings": [
            {
                "severity": f.severity,
                "sentence": f.sentence,
                "stack": f.stack,
                "site": f.details.get("site"),
                "heads": [list(h) for h in f.heads],
            }
            for f in findings
        ],
    }
    return templates.get_template("page.html").render(
        policy=policy(style, script),
        style=style,
        script=script,
        data=data,
        specifications={f.name: f.specification for f in drawn},
        model=model_name(survey),
        corpus=corpus_words(survey),
        version=__version__,
        findings=[_shown(f) for f in findings],
        counts={s: sum(f.severity == s for f in findings) for s in reversed(SEVERITIES)},
        headlines=headlines(survey, table, thresholds),
        profiles=figures,
        maps=maps,
        comparison=comparison,
        provenance=flat({k: v for k, v in survey.provenance.items() if k not in ("not_measured", "notes")}),
        missing=missing_words(survey),
        notes=note_words(survey),
        thresholds=sorted(vars(thresholds or Thresholds()).items()),
        cards=list(survey.cards.values()),
    )


@dataclass(frozen=True)
class _Shown:
    """A finding and what the page needs to draw it."""

    finding: Finding
    place: str
    kind: str
    measure: str | None
    value: str | None
    threshold: str
    gauge: tuple[float, float] | None


def _shown(finding: Finding) -> _Shown:
    from attnscope.core.numerals import numeral
    from attnscope.reporting.survey.words import place

    measure = finding.details.get("measure")
    return _Shown(
        finding,
        place(finding),
        finding.kind.replace("_", " "),
        str(measure) if measure else None,
        numeral(finding.value),
        numeral(finding.threshold),
        gauge(finding.value, finding.threshold),
    )


def gauge(value: float, threshold: float) -> tuple[float, float] | None:
    """Where number and threshold stand on a bar of 100: on a logarithmic one where they are far apart."""
    if not (math.isfinite(value) and math.isfinite(threshold)) or value < 0 or threshold <= 0:
        return None
    far = value > 0 and not 1 / 12 <= value / threshold <= 12
    if far:
        apart = math.log10(value / threshold)
        middle = 50 - math.copysign(min(30.0, 8 * abs(apart)), apart) / 2
        return round(middle + math.copysign(min(30.0, 8 * abs(apart)), apart), 1), round(middle, 1)
    reach = max(1.0 if max(value, threshold) <= 1 else 0.0, 1.15 * max(value, threshold))
    return round(100 * value / reach, 1), round(100 * threshold / reach, 1)


@dataclass(frozen=True)
class _Compared:
    """Everything the comparison section shows."""

    names: tuple[str, str]
    build: str | None
    figures: tuple[Any, ...]
    heading: str
    changes: tuple[Any, ...]
    changes_by_map: list[dict[str, Any] | None]
    drawings: tuple[tuple[Any, str, float], ...]
    appeared: tuple[Finding, ...]
    disappeared: tuple[Finding, ...]
    missing: tuple[str, ...]


def _compared(found: Comparison, table: Any, maps: tuple[Any, ...]) -> _Compared:
    from attnscope.reporting.comparison.words import build_words, change_words, changes_worth_listing
    from attnscope.reporting.survey.figures import paired_profiles
    from attnscope.reporting.survey.maps import difference_drawing, differences, figures, head_maps
    from attnscope.reporting.survey.words import names

    survey, other = found.first, found.second
    second = other.table()
    twins = {(m.card.name, m.part, m.stack, m.site): m for m in head_maps(other, second)}
    by_map: list[dict[str, Any] | None] = []
    drawings = []
    for one in maps:
        twin = twins.get((one.card.name, one.part, one.stack, one.site))
        change = differences(one, twin) if twin is not None else None
        if twin is None or change is None:
            by_map.append(None)
            continue
        drawing, reach = difference_drawing(change)
        by_map.append({"mean": figures(twin.numbers["mean"]), "reach": reach})
        if (change[np.isfinite(change)] != 0).any():  # a picture of no difference would be of nothing
            drawings.append((one, drawing, reach))
    told = names(survey, other)
    return _Compared(
        names=told,
        build=build_words(found.before, found.after),
        figures=paired_profiles(survey, table, second, told),
        heading=change_words(found),
        changes=changes_worth_listing(found, MOST_CHANGES),
        changes_by_map=by_map,
        drawings=tuple(drawings),
        appeared=found.appeared,
        disappeared=found.disappeared,
        missing=(*found.only_before, *found.only_after),
    )
