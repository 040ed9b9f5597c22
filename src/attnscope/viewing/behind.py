"""The sequence behind a finding: which one, and the head to look at first."""

from __future__ import annotations

from dataclasses import dataclass

from attnscope.core.errors import RefusalError
from attnscope.core.words import ranges
from attnscope.records.survey.diagnose import diagnose
from attnscope.records.survey.survey import Survey


@dataclass(frozen=True)
class Behind:
    sample: int
    layer: int | None  # None: no finding of the usual thresholds names a place
    head: int | None
    sentence: str


def behind_finding(survey: Survey, sample: int | None) -> Behind:
    """The sequence of that number, or that of the worst finding which points at one."""
    kept = survey.sequences
    if not kept:
        raise RefusalError(
            "The survey keeps no sequences (no finding points at one, or it was made with --no-text): scan again, or "
            "give a text."
        )
    if sample is not None and sample not in kept:
        raise RefusalError(f"The survey keeps no sample {sample}: choose with --sample one of {ranges(kept)}.")
    for finding in diagnose(survey):  # the worst first
        number = finding.details.get("sample")
        if number in kept and sample in (None, number) and finding.heads:
            return Behind(number, *finding.heads[0], finding.sentence)
    return Behind(next(iter(kept)) if sample is None else sample, None, None, "")
