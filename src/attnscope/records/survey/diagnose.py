"""From numbers to sentences: what a survey says about a model, worst first.

    for finding in diagnose(survey, Thresholds(sink_mass=0.4)):
        print(finding.severity, finding.sentence)

Each kind of finding is one file in findings/.
"""

from __future__ import annotations

from pathlib import Path

from attnscope.core.finding import SEVERITIES, Finding
from attnscope.records.load import opened
from attnscope.records.survey.findings.alarm import alarm
from attnscope.records.survey.findings.collapse import collapse
from attnscope.records.survey.findings.duplicate import duplicate
from attnscope.records.survey.findings.entropy import entropy_collapse, uniform
from attnscope.records.survey.findings.nonfinite import nonfinite
from attnscope.records.survey.findings.pattern import identity, previous_token
from attnscope.records.survey.findings.sink import sink, sink_elsewhere
from attnscope.records.survey.findings.smoothing import smoothing
from attnscope.records.survey.findings.spike import spike
from attnscope.records.survey.survey import Survey
from attnscope.records.survey.thresholds import Thresholds

# Within one severity, findings keep this order.
KINDS = (
    nonfinite,
    collapse,
    entropy_collapse,
    smoothing,
    spike,
    sink,
    sink_elsewhere,
    uniform,
    duplicate,
    identity,
    previous_token,
    alarm,
)


def diagnose(survey: Survey | str | Path, thresholds: Thresholds | None = None) -> tuple[Finding, ...]:
    """Every finding, critical ones first. A path is read."""
    read = opened(survey, Survey)
    chosen = thresholds or Thresholds()
    found = [finding for kind in KINDS for finding in kind(read, chosen)]
    return tuple(sorted(found, key=lambda f: -SEVERITIES.index(f.severity)))
