"""From numbers to sentences: what a survey says about a model, worst first.

    for finding in diagnose(survey, Thresholds(sink_mass=0.4)):
        print(finding.severity, finding.sentence)

Each kind of finding is one file in findings/; within one severity they keep the order that their cards name.
"""

from __future__ import annotations

from pathlib import Path

from attnscope.core.finding import SEVERITIES, Finding
from attnscope.core.registry import findings
from attnscope.records.load import opened
from attnscope.records.survey.survey import Survey
from attnscope.records.survey.thresholds import Thresholds


def diagnose(survey: Survey | str | Path, thresholds: Thresholds | None = None) -> tuple[Finding, ...]:
    """Every finding, critical ones first. A path is read."""
    read = opened(survey, Survey)
    chosen = thresholds or Thresholds()
    found = [finding for kind in findings().values() for finding in kind(read, chosen)]
    return tuple(sorted(found, key=lambda f: -SEVERITIES.index(f.severity)))
