"""Recorded runs: known.json holds the verdicts and numbers of complete runs.

`tools/record_verdicts.py` copies them from results.json; they are never edited by hand. A claim whose rule or
quantities have changed since the run counts as changed. The file is part of attnscope, so it is read without checks,
which would slow down listing.
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
    """The recorded verdict on one claim, the rule that decided it, and the medians of its quantities."""

    rule: dict[str, list[str]]
    verdict: Verdict
    median: dict[str, float]


@dataclass(frozen=True)
class KnownRun:
    """A complete run as stored in known.json."""

    preset: str
    seeds: tuple[int, ...]
    attnscope: str
    claims: dict[str, KnownClaim]


@dataclass(frozen=True)
class Known:
    """A recorded run of an experiment, limited to the claims that have not changed since."""

    preset: str
    seeds: int
    verdicts: Mapping[str, Verdict]
    claims: int  # how many claims the experiment has now; those that changed have no verdict
    medians: Mapping[str, Mapping[str, float]]  # median over the seeds, by claim and quantity

    @property
    def words(self) -> str:
        """Return a summary such as `17 reproduced, 2 not reproduced (quick, 1 seed)`."""
        counts = [(list(self.verdicts.values()).count(verdict), verdict) for verdict in VERDICTS]
        words = ", ".join(f"{number} {verdict}" for number, verdict in counts if number)
        words += f", {self.changed} changed since" if self.changed else ""
        return f"{words} ({self.preset}, {count(self.seeds, 'seed')})"

    @property
    def brief(self) -> str:
        """Return a summary such as `16 of 21 (-1)`: claims reproduced, judged and contradicted."""
        verdicts = list(self.verdicts.values())
        against = verdicts.count("contradicted")
        words = f"{verdicts.count('reproduced')} of {len(verdicts)}"
        words += f" (-{against})" if against else ""
        return words + (f", {self.changed} changed" if self.changed else "")

    @property
    def changed(self) -> int:
        return self.claims - len(self.verdicts)


def known(experiment: ExperimentCard) -> tuple[Known, ...]:
    """Return the recorded runs, the quick one first, without the claims that have changed since."""
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
    """Return the catalogue entry of an experiment, with its recorded runs; its verdicts come from the largest run."""
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
    """Return a claim's bounds as text, such as `sort_accuracy >= 0.95`."""
    rule = {"reproduced": list(map(str, claim.holds)), "contradicted": list(map(str, claim.fails))}
    return rule | ({"given": list(map(str, claim.given))} if claim.given else {})


@cache
def _all() -> dict[str, dict[str, Any]]:
    content: dict[str, dict[str, Any]] = json.loads(files("attnscope.papers").joinpath(FILE).read_text("utf-8"))
    return content
