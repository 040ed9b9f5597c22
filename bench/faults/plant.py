"""Plant every fault in a subject, scan it, and keep the surveys, so that they can be judged again without models."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attnscope
from bench.faults.body import NotApplicableError
from bench.faults.cases import bed_of, names, planted
from bench.faults.plants import FAULTS


def plant_all(subject_name: str, folder: Path, only: str | None = None) -> None:
    """Write one survey for each case into `folder`; skip those that are there."""
    bed = bed_of(subject_name)
    mine = folder / subject_name
    mine.mkdir(parents=True, exist_ok=True)
    for name, seed in names():
        with _case(mine, name, seed, only) as keep:
            if keep is not None:
                with planted(bed, name, seed) as case:
                    keep(attnscope.scan(case.loaded, case.text, **case.options), case.facts)


@contextmanager
def _case(folder: Path, name: str, seed: int, only: str | None) -> Iterator[Any]:
    """Yield a function that keeps a survey, or None if the case is done already."""
    facts, survey = folder / f"{name}.{seed}.json", folder / f"{name}.{seed}.survey.json.gz"
    if facts.exists() or (only is not None and only != name):
        yield None
        return
    start = time.monotonic()

    def keep(found: attnscope.Survey, known: dict[str, Any]) -> None:
        found.save(survey)
        loss = None if found.trial is None or not found.trial.loss else found.trial.mean_loss
        facts.write_text(json.dumps({"name": name, "seed": seed, **known, "loss": loss}), encoding="utf-8")
        print(f"{folder.name} {name} {seed}: loss {loss}, {time.monotonic() - start:.1f} s", flush=True)

    try:
        yield keep
    except NotApplicableError as error:
        facts.write_text(json.dumps({"name": name, "seed": seed, "not_applicable": str(error)}), encoding="utf-8")
    except (attnscope.RefusalError, RuntimeError) as error:
        refused = {
            "name": name,
            "seed": seed,
            "refused": str(error)[:300],
            "kind": FAULTS[name].kind if name in FAULTS else "control",
        }
        facts.write_text(json.dumps(refused), encoding="utf-8")
        print(f"{folder.name} {name} {seed}: refused: {error}", flush=True)
