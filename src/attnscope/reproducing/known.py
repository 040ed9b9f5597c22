"""What earlier runs found: known.json, beside this file, holds verdicts and numbers of whole runs, as they came out.

`tools/record_verdicts.py` copies them from results.json; nobody types them. A claim whose rule or quantities have
changed since is not known any more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from attnscope.core.experiment import VERDICTS, Experiment, Verdict
from attnscope.records.decoding import decode
from attnscope.records.reproduction import Reproduction, Rule
from attnscope.reporting.catalog import Paper

FILE = "known.json"


@dataclass(frozen=True)
class KnownClaim:
    """What became of one claim, and the rule it was judged by."""

    rule: Rule
    verdict: Verdict
    median: dict[str, float]


@dataclass(frozen=True)
class KnownRun:
    """One whole run, as known.json holds it."""

    preset: str
    seeds: tuple[int, ...]
    attnscope: str
    claims: dict[str, KnownClaim]


@dataclass(frozen=True)
class _Shelf:
    """All of known.json: runs by experiment and preset."""

    runs: dict[str, dict[str, KnownRun]]


@dataclass(frozen=True)
class Known:
    """One whole run of an experiment: how it was run, and what became of each claim."""

    preset: str
    seeds: int
    verdicts: Mapping[str, Verdict]
    claims: int  # that the experiment has now; those that changed since are not among the verdicts

    @property
    def words(self) -> str:
        """`17 reproduced, 2 not reproduced (quick, 1 seed)`."""
        counts = [(sum(one == verdict for one in self.verdicts.values()), verdict) for verdict in VERDICTS]
        said = ", ".join(f"{count} {verdict}" for count, verdict in counts if count)
        rest = self.claims - len(self.verdicts)
        said += f", {rest} changed since" if rest else ""
        return f"{said} ({self.preset}, {self.seeds} seed{'s' if self.seeds > 1 else ''})"


def known(experiment: Experiment) -> tuple[Known, ...]:
    """Runs that are on record, quick ones first; only claims that are still what they were then."""
    return tuple(
        Known(
            preset=run.preset,
            seeds=len(run.seeds),
            claims=len(experiment.claims),
            verdicts={
                claim.name: before.verdict
                for claim in experiment.claims
                if (before := run.claims.get(claim.name)) is not None and before.rule == Rule.of(claim)
            },
        )
        for preset in experiment.presets
        if (run := _all().get(experiment.name, {}).get(preset)) is not None
    )


def recorded(found: Reproduction) -> KnownRun:
    """What is kept of a run."""
    claims = {claim.name: KnownClaim(Rule.of(claim), claim.verdict, claim.medians) for claim in found.claims}
    return KnownRun(found.preset, found.seeds, found.attnscope, claims)


def listed(experiment: Experiment) -> Paper:
    """An experiment with what is on record of it: the verdicts beside claims are those of the largest run."""
    runs = known(experiment)
    before = runs[-1].verdicts if runs else {}
    return Paper(
        name=experiment.name,
        title=experiment.title,
        paper=experiment.paper,
        summary=experiment.summary,
        takes=", ".join(f"{preset}: {time}" for preset, time in experiment.takes.items()),
        on_record=tuple(run.words for run in runs),
        claims=tuple((before.get(claim.name, "not run"), claim.statement) for claim in experiment.claims),
    )


@cache
def _all() -> dict[str, dict[str, KnownRun]]:
    data = json.loads(files("attnscope.reproducing").joinpath(FILE).read_text("utf-8"))
    shelf: _Shelf = decode(_Shelf, {"runs": data})
    return shelf.runs
