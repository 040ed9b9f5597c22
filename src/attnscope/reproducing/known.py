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
from typing import Any

from attnscope.core.experiment import VERDICTS, Claim, Experiment

FILE = "known.json"


@dataclass(frozen=True)
class Known:
    """One whole run of an experiment: how it was run, and what became of each claim."""

    preset: str
    seeds: int
    verdicts: Mapping[str, str]
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
            preset=run["preset"],
            seeds=len(run["seeds"]),
            claims=len(experiment.claims),
            verdicts={
                claim.name: run["claims"][claim.name]["verdict"]
                for claim in experiment.claims
                if run["claims"].get(claim.name, {}).get("rule") == rule(claim)
            },
        )
        for preset in experiment.presets
        if (run := _all().get(experiment.name, {}).get(preset)) is not None
    )


def recorded(results: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of a results.json."""
    kept = {name: results[name] for name in ("preset", "seeds", "attnscope")}
    claims = {
        claim["name"]: {"rule": claim["rule"], "verdict": claim["verdict"], "median": claim["median"]}
        for claim in results["claims"]
    }
    return {**kept, "claims": claims}


def rule(claim: Claim) -> dict[str, list[str]]:
    found: dict[str, list[str]] = claim.to_json()["rule"]
    return found


@cache
def _all() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(files("attnscope.reproducing").joinpath(FILE).read_text("utf-8"))
    return data
