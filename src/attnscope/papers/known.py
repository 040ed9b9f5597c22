"""Recorded runs: known.json holds the verdicts and numbers of whole runs.

`tools/record_verdicts.py` copies them from results.json; nobody types them. A claim whose rule or quantities have
changed since counts as changed. The file is ours and read without checks, which would make a list slow.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from attnscope.core.experiment import PRESETS, VERDICTS, Claim, ExperimentCard, Verdict
from attnscope.core.words import count
from attnscope.reports.catalog import Paper

if TYPE_CHECKING:
    from attnscope.commands.reproduce.record import Reproduction

FILE = "known.json"
NOT_RUN = "-"


@dataclass(frozen=True)
class KnownClaim:
    """The verdict on one claim, and the rule behind it."""

    rule: dict[str, list[str]]
    verdict: Verdict
    median: dict[str, float]


@dataclass(frozen=True)
class KnownRun:
    """One whole run in known.json."""

    preset: str
    seeds: tuple[int, ...]
    attnscope: str
    claims: dict[str, KnownClaim]


@dataclass(frozen=True)
class Known:
    """One whole run of an experiment: how it was run, and the verdict on each claim."""

    preset: str
    seeds: int
    verdicts: Mapping[str, Verdict]
    claims: int  # of the experiment now; changed ones have no verdict
    medians: Mapping[str, Mapping[str, float]]  # by claim and quantity, over the seeds

    @property
    def words(self) -> str:
        """Return `17 reproduced, 2 not reproduced (quick, 1 seed)`."""
        counts = [(list(self.verdicts.values()).count(verdict), verdict) for verdict in VERDICTS]
        words = ", ".join(f"{number} {verdict}" for number, verdict in counts if number)
        words += f", {self.changed} changed since" if self.changed else ""
        return f"{words} ({self.preset}, {count(self.seeds, 'seed')})"

    @property
    def brief(self) -> str:
        """Return `16 of 21 (-1)`: reproduced claims, all claims, contradicted claims."""
        verdicts = list(self.verdicts.values())
        against = verdicts.count("contradicted")
        words = f"{verdicts.count('reproduced')} of {len(verdicts)}"
        words += f" (-{against})" if against else ""
        return words + (f", {self.changed} changed" if self.changed else "")

    @property
    def changed(self) -> int:
        return self.claims - len(self.verdicts)


def known(experiment: ExperimentCard) -> tuple[Known, ...]:
    """Return the recorded runs, quick ones first, without claims that have changed since."""
    runs = _all().get(experiment.name, {})
    return tuple(_as_now(preset, runs[preset], experiment) for preset in PRESETS if preset in runs)


def _as_now(preset: str, run: Mapping[str, Any], experiment: ExperimentCard) -> Known:
    same = {
        claim.name: before
        for claim in experiment.claims
        if (before := run["claims"].get(claim.name)) is not None and before["rule"] == _rule(claim)
    }
    return Known(
        preset=preset,
        seeds=len(run["seeds"]),
        claims=len(experiment.claims),
        verdicts={name: before["verdict"] for name, before in same.items()},
        medians={name: before["median"] for name, before in same.items()},
    )


def recorded(run: Reproduction) -> KnownRun:
    """Return the part of a run that known.json keeps."""
    claims = {claim.name: KnownClaim(_rule(claim), claim.verdict, claim.medians) for claim in run.claims}
    return KnownRun(run.preset, run.seeds, run.attnscope, claims)


def listed(experiment: ExperimentCard) -> Paper:
    """Return an experiment with its recorded runs; the verdicts are those of the largest run."""
    runs = known(experiment)
    brief = {run.preset: run.brief for run in runs}
    before = runs[-1].verdicts if runs else {}
    return Paper(
        name=experiment.name,
        title=experiment.title,
        paper=experiment.paper,
        summary=experiment.summary,
        takes=", ".join(f"{preset}: {time}" for preset, time in experiment.takes.items()),
        on_record=tuple(run.words for run in runs),
        brief=tuple(brief.get(preset, NOT_RUN) for preset in PRESETS),
        claims=tuple((before.get(claim.name, "not run"), claim.statement) for claim in experiment.claims),
        advice=experiment.advice,
    )


def _rule(claim: Claim) -> dict[str, list[str]]:
    """Return the bounds as text: `sort_accuracy >= 0.95`."""
    rule = {"reproduced": list(map(str, claim.holds)), "contradicted": list(map(str, claim.fails))}
    return rule | ({"given": list(map(str, claim.given))} if claim.given else {})


@cache
def _all() -> dict[str, dict[str, Any]]:
    content: dict[str, dict[str, Any]] = json.loads(files("attnscope.papers").joinpath(FILE).read_text("utf-8"))
    return content
