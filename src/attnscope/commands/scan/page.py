"""The page of a survey: one HTML file that loads nothing.

Charts are drawn when the page is written, because Vega inside the page would cost 0.9 MB of script and need
`unsafe-eval`. Every profile is an Altair specification that vl-convert turns into SVG; the page also holds the
specification for download. Maps of blocks and heads are plain HTML with a short script. A page of 30 blocks x 9 heads
is well under a megabyte.

No model name or corpus text can run code: Jinja escapes text, JSON escapes angle brackets, and the
Content-Security-Policy allows only the page's own script and style sheet, by their SHA-256.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attnscope.commands.compare.record import compare
from attnscope.commands.scan.diagnose import Thresholds, diagnose
from attnscope.commands.scan.survey.provenance import Evidence, evidence, view_name
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.finding import LEVELS, Finding

PICTURES = ("sink_mass", "entropy")  # the map on the first screen: the first of these that was measured
TEXTS_SHOWN = "This page and the survey contain the texts of {} behind the findings: --no-text leaves them out."
NO_TEXTS = "This page contains no text of the corpus."


def render(
    survey: Survey,
    *,
    findings: tuple[Finding, ...] | None = None,
    other: Survey | str | Path | None = None,
    thresholds: Thresholds | None = None,
    keep_text: bool = True,
    kept_in: str = "survey.json",
    views: Collection[int] = (),
) -> str:
    """Return the page; with `other`, the page of a comparison of the two. Equal surveys give equal pages.

    `keep_text` shows the sequences behind findings, if the survey has them. `kept_in` is the file of the survey;
    `views` are sequences that have a page of `view` beside this one.
    """
    if other is not None:
        from attnscope.commands.compare.page import render as render_comparison

        return render_comparison(compare(survey, other, thresholds=thresholds))
    from attnscope.commands.scan.figures import FULL_DETAIL, head_maps, profiles
    from attnscope.commands.scan.words import (
        corpus_words,
        facts,
        headlines,
        missing_words,
        model_name,
        notes,
        proof,
        severity_counts,
        verdict,
    )
    from attnscope.core.words import count
    from attnscope.reports.document import rows
    from attnscope.reports.page import page
    from attnscope.reports.words import card_range

    findings = diagnose(survey, thresholds) if findings is None else findings
    chosen = thresholds or Thresholds()
    # The page states one limit for each measure: that of the findings, in charts, maps and cards too.
    survey = replace(survey, cards={name: chosen.card(card) for name, card in survey.cards.items()})
    table = survey.table()
    maps = head_maps(survey, table)
    detail = sum(m.layers * m.heads for m in maps) <= FULL_DETAIL
    figures = profiles(survey, table)
    excerpts = survey.excerpts if keep_text and "shards" not in survey.provenance.get("corpus", {}) else {}
    items = [_item(finding, survey, evidence(finding, excerpts), kept_in, views) for finding in findings]
    texts = {item.evidence.sample for item in items if item.evidence}
    return page(
        "survey.html",
        verdict=verdict(survey, findings, thresholds),
        figures=figures,
        scripts=("survey.js",),
        data={"maps": [m.to_json(detail) for m in maps], "findings": [_plain(f) for f in findings]},
        model=model_name(survey),
        corpus=corpus_words(survey),
        findings=items,
        levels=LEVELS,
        counts={name: counted for name, counted in severity_counts(findings).items() if counted[0]},
        notes=notes(survey),
        facts=facts(survey),
        picture=next((m for name in PICTURES for m in maps if m.card.name == name and m.site == "self"), None),
        headlines=headlines(survey, table, thresholds),
        profiles=figures,
        maps=maps,
        proof=proof(survey),
        provenance=rows({k: v for k, v in survey.provenance.items() if k not in ("not_measured", "notes")}),
        missing=missing_words(survey),
        texts=TEXTS_SHOWN.format(count(len(texts), "sequence")) if texts else NO_TEXTS,
        thresholds=sorted(vars(chosen).items()),
        cards=[(card, card_range(card)) for card in survey.cards.values()],
    )


def _plain(finding: Finding) -> dict[str, Any]:
    """Return the fields of a finding that the page's script reads."""
    return {
        "level": finding.level,
        "sentence": finding.sentence,
        "stack": finding.stack,
        "site": finding.details.get("site"),
        "heads": [list(head) for head in finding.heads],
    }


@dataclass(frozen=True)
class _Item:
    """The parts of one finding that the page shows."""

    finding: Finding
    measure: str | None
    value: str
    threshold: str
    usual: str  # range in real models, in words
    gauge: tuple[float, float] | None
    evidence: Evidence | None
    view: str | None  # page of that sequence
    command: str | None  # the command that writes such a page


def _item(finding: Finding, survey: Survey, behind: Evidence | None, kept_in: str, views: Collection[int]) -> _Item:
    from attnscope.core.words import numeral

    view = None
    if behind is not None and behind.sample in views:
        anchor = f"#layer={finding.heads[0][0]}&head={finding.heads[0][1]}" if finding.heads else ""
        view = f"{view_name(behind.sample)}{anchor}"
    return _Item(
        finding,
        str(finding.details.get("measure") or "") or None,
        numeral(finding.value),
        numeral(finding.threshold),
        _usual_words(finding, survey),
        gauge(finding.value, finding.threshold),
        behind,
        view,
        None if behind is None else _view_command(survey, behind.sample, kept_in),
    )


def _usual_words(finding: Finding, survey: Survey) -> str:
    """Return the usual range of the measure that a finding reads, or nothing if it is unknown."""
    from attnscope.commands.atlas.ranges import reference

    card = survey.cards.get(str(finding.details.get("measure")))
    if card is None:
        return ""
    site = str(finding.details.get("site") or card.sites[0])
    found = reference(survey, card.name, card.parts[0], finding.stack, site)
    return "" if found is None else f"{card.title}, {found.words}"


def _view_command(survey: Survey, sample: int, kept_in: str) -> str | None:
    model = survey.provenance.get("model", {})
    if sample not in survey.sequences or not isinstance(model.get("source"), str):
        return None
    words = ["attnscope", "view", model["source"], "--from", kept_in, "--sample", str(sample)]
    if model.get("weights") == "random":
        words += ["--random-init", "--seed", str(model.get("seed", 0))]
    if survey.provenance.get("dtype", "float32") != "float32":
        words += ["--dtype", str(survey.provenance["dtype"])]
    return shlex.join(words)


def gauge(value: float, threshold: float) -> tuple[float, float] | None:
    """Return the positions of number and threshold on a bar from 0 to 100; the bar is logarithmic if they are far
    apart."""
    if not (math.isfinite(value) and math.isfinite(threshold)) or value < 0 or threshold <= 0:
        return None
    far = value > 0 and not 1 / 12 <= value / threshold <= 12
    if far:
        apart = math.log10(value / threshold)
        middle = 50 - math.copysign(min(30.0, 8 * abs(apart)), apart) / 2
        return round(middle + math.copysign(min(30.0, 8 * abs(apart)), apart), 1), round(middle, 1)
    reach = max(1.0 if max(value, threshold) <= 1 else 0.0, 1.15 * max(value, threshold))
    return round(100 * value / reach, 1), round(100 * threshold / reach, 1)
