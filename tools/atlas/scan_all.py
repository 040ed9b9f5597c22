"""Scan every checkpoint of the atlas, and its twin with random weights, with the same settings.

    python -m tools.atlas.scan_all                 all that have no survey yet
    python -m tools.atlas.scan_all iglm mpnet      these, again
    python -m tools.atlas.scan_all --findings      what each survey's findings say

Surveys go to .weights/atlas/surveys/NAME.json and NAME.random.json (both gzip if so named by attnscope), seconds and
refusals to .weights/atlas/surveys/log.json. One checkpoint at a time, in a process of its own, so that memory is given
back and a crash ends one scan only. An interrupted run continues with what is missing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tools.atlas import convert, corpora
from tools.atlas.checkpoints import CHECKPOINTS

SURVEYS = convert.ATLAS / "surveys"
LOG = SURVEYS / "log.json"
SETTINGS: dict[str, Any] = {"samples": 16, "max_tokens": 64, "seed": 0, "measures": "default"}


def target(name: str, random: bool) -> Path:
    """Return where the survey of a checkpoint or of its twin lies."""
    return SURVEYS / f"{name}{'.random' if random else ''}.json"


def scan(name: str, random: bool) -> None:
    """Scan one checkpoint in this process and save its survey."""
    import attnscope

    checkpoint, folder = CHECKPOINTS[name], convert.folder(name)
    survey = attnscope.scan(folder, corpora.of(checkpoint, folder), random_init=random, **SETTINGS)
    survey.save(target(name, random))


def _alone(name: str, random: bool) -> dict[str, Any]:
    """Scan in a process of its own; return seconds, and the message if it failed."""
    started = time.monotonic()
    command = [sys.executable, "-m", "tools.atlas.scan_all", "--one", name, "random" if random else "trained"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    entry: dict[str, Any] = {"seconds": round(time.monotonic() - started, 1)}
    if done.returncode:
        entry["refused"] = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return entry


def run(names: list[str]) -> None:
    """Scan checkpoints one after the other; those that were named are scanned again."""
    SURVEYS.mkdir(parents=True, exist_ok=True)
    log = json.loads(LOG.read_text(encoding="utf-8")) if LOG.is_file() else {}
    for name in names or list(CHECKPOINTS):
        for random in (False, True):
            if not names and target(name, random).is_file():
                continue
            key = target(name, random).stem
            log[key] = _alone(name, random)
            print(f"{key:32} {log[key]['seconds']:7.1f} s  {log[key].get('refused', '')}", flush=True)
            LOG.write_text(json.dumps(log, indent=1) + "\n", encoding="utf-8")


def show_findings() -> None:
    """Print the findings of every survey."""
    from attnscope.commands.scan.survey.survey import Survey

    for name in CHECKPOINTS:
        for random in (False, True):
            if target(name, random).is_file():
                found = Survey.load(target(name, random)).sentences()
                print(f"{target(name, random).stem}: " + (" | ".join(found) or "none"))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--one", name, kind]:
            scan(name, kind == "random")
        case ["--findings"]:
            show_findings()
        case names:
            run(names)
