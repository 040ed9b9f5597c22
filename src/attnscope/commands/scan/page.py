"""The report: one HTML file that needs nothing else, opens at once, and can be mailed, printed and kept.

Charts are drawn when the page is written, not when it is read. A page with Vega inside would carry 0.9 MB
of script, ask for `unsafe-eval` (or an interpreter on top) and take a second to draw what never changes.
Here every profile is an Altair specification turned into SVG by vl-convert (the specification is in the
page too, to be saved from it), and maps of blocks and heads are plain HTML with a short script for hover,
filter and click-through. What comes out for 30 blocks x 9 heads is well under a megabyte, follows light and
dark through CSS variables, and prints.

Nothing in the page can reach the network or run what a model name or a corpus says: text is escaped by
Jinja, data is JSON with its angle brackets escaped, and the Content-Security-Policy allows the one script
and the one style sheet by their SHA-256 and nothing else.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnscope.commands.compare.record import compare
from attnscope.commands.scan.diagnose import Thresholds, diagnose
from attnscope.commands.scan.survey.provenance import Evidence, evidence, view_name
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.finding import SEVERITIES, Finding

TEXTS_SHOWN = (
    "Texts of {} that findings point at are in this page, read from the survey: --no-text leaves them out of either."
)
NO_TEXTS = "No text of the corpus is in this page."


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
    """The page as text; with `other`, that of a comparison of the two. Equal surveys give equal pages.

    `keep_text` shows the sequences that findings point at, where the survey has them. `kept_in` is where the survey is,
    and `views` are sequences whose attention has a page beside this one.
    """
    if other is not None:
        from attnscope.commands.compare.page import render as render_comparison

        return render_comparison(compare(survey, other, thresholds=thresholds))
    from attnscope.commands.scan.figures import FULL_DETAIL, head_maps, profiles
    from attnscope.commands.scan.words import corpus_words, headlines, missing_words, model_name, notes, proof, verdict
    from attnscope.core.words import count
    from attnscope.reports.document import rows
    from attnscope.reports.page import page
    from attnscope.reports.words import card_range

    findings = diagnose(survey, thresholds) if findings is None else findings
    table = survey.table()
    maps = head_maps(survey, table)
    detail = sum(m.layers * m.heads for m in maps) <= FULL_DETAIL
    figures = profiles(survey, table)
    excerpts = survey.excerpts if keep_text and "shards" not in survey.provenance.get("corpus", {}) else {}
    shown = [_shown(finding, excerpts, _Viewing(survey, kept_in, views)) for finding in findings]
    texts = {item.evidence.sample for item in shown if item.evidence}
    return page(
        "survey.html",
        verdict=verdict(survey, findings, thresholds),
        figures=figures,
        scripts=("survey.js",),
        data={"maps": [m.to_json(detail) for m in maps], "findings": [_plain(f) for f in findings]},
        model=model_name(survey),
        corpus=corpus_words(survey),
        findings=shown,
        counts=_counts(findings),
        notes=notes(survey),
        headlines=headlines(survey, table, thresholds),
        profiles=figures,
        maps=maps,
        proof=proof(survey),
        provenance=rows({k: v for k, v in survey.provenance.items() if k not in ("not_measured", "notes")}),
        missing=missing_words(survey),
        texts=TEXTS_SHOWN.format(count(len(texts), "sequence")) if texts else NO_TEXTS,
        thresholds=sorted(vars(thresholds or Thresholds()).items()),
        cards=[(card, card_range(card)) for card in survey.cards.values()],
    )


def _counts(findings: Sequence[Finding]) -> dict[str, tuple[int, str]]:
    """How many there are of each severity that occurs, and what these are called."""
    from attnscope.commands.scan.words import NAMES

    found = {severity: sum(f.severity == severity for f in findings) for severity in reversed(SEVERITIES)}
    return {severity: (n, NAMES[severity][n != 1]) for severity, n in found.items() if n}


def _plain(finding: Finding) -> dict[str, Any]:
    """What the page's script needs of a finding."""
    return {
        "severity": finding.severity,
        "sentence": finding.sentence,
        "stack": finding.stack,
        "site": finding.details.get("site"),
        "heads": [list(head) for head in finding.heads],
    }


@dataclass(frozen=True)
class _Shown:
    """A finding and what the page needs to draw it."""

    finding: Finding
    severity: str
    measure: str | None
    value: str
    threshold: str
    gauge: tuple[float, float] | None
    evidence: Evidence | None
    view: str | None  # the page of that sequence
    command: str | None  # what makes one


@dataclass(frozen=True)
class _Viewing:
    """How the attention of a sequence behind a finding is seen."""

    survey: Survey
    kept_in: str
    views: Collection[int]

    def page(self, finding: Finding, sample: int) -> str | None:
        if sample not in self.views:
            return None
        place = "" if not finding.heads else f"#layer={finding.heads[0][0]}&head={finding.heads[0][1]}"
        return f"{view_name(sample)}{place}"

    def command(self, sample: int) -> str | None:
        model = self.survey.provenance.get("model", {})
        if sample not in self.survey.sequences or not isinstance(model.get("source"), str):
            return None
        words = ["attnscope", "view", model["source"], "--from", self.kept_in, "--sample", str(sample)]
        if model.get("weights") == "random":
            words += ["--random-init", "--seed", str(model.get("seed", 0))]
        if self.survey.provenance.get("dtype", "float32") != "float32":
            words += ["--dtype", str(self.survey.provenance["dtype"])]
        return shlex.join(words)


def _shown(finding: Finding, excerpts: dict[int, tuple[str, ...]], viewing: _Viewing) -> _Shown:
    from attnscope.commands.scan.words import NAMES
    from attnscope.core.words import numeral

    measure = finding.details.get("measure")
    behind = evidence(finding, excerpts)
    return _Shown(
        finding,
        NAMES[finding.severity][0],
        str(measure) if measure else None,
        numeral(finding.value),
        numeral(finding.threshold),
        gauge(finding.value, finding.threshold),
        behind,
        None if behind is None else viewing.page(finding, behind.sample),
        None if behind is None else viewing.command(behind.sample),
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
