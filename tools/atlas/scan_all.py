"""Scan every checkpoint of the atlas and its twin with random weights, and condense the surveys into the package.

    python -m tools.atlas.scan_all                  scan what has no survey yet, then build
    python -m tools.atlas.scan_all iglm mpnet-base  these, again
    python -m tools.atlas.scan_all --build          only build src/attnscope/commands/atlas/atlas.json.gz

All have the same settings. Checkpoints whose check in loaded_right.json did not pass are left out. Corpora with one
sequence a line are given line by line, so that no sequence is cut out of its middle.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import attnscope
from attnscope.commands.atlas import ranges
from attnscope.commands.atlas.record import Atlas, Entry, entry_of
from attnscope.commands.place.record import placement_of
from tools.atlas import convert, corpora
from tools.atlas.checkpoints import CHECKPOINTS
from tools.atlas.entry import Checkpoint
from tools.atlas.loaded_right import RECORD

SETTINGS: dict[str, Any] = {"samples": 32, "max_tokens": 128, "seed": 0}
SURVEYS = corpora.CORPORA.parent / "surveys"
PACKAGED = Path(__file__).parents[2] / "src/attnscope/commands/atlas/atlas.json.gz"
RUNNING_TEXT = ("english", "french", "korean", "chinese")  # corpora that may be cut anywhere


def text_of(checkpoint: Checkpoint, folder: Path) -> Any:
    """Return what a checkpoint reads."""
    given = corpora.of(checkpoint, folder)
    if not isinstance(given, str) or checkpoint.corpus in RUNNING_TEXT:
        return given
    return [line for line in corpora.file(checkpoint.corpus).read_text(encoding="utf-8").splitlines() if line]


def passed() -> list[str]:
    """Return the names of the checkpoints that are loaded right, small ones first, each set of weights once."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    digests: dict[str, str] = {}
    for name in CHECKPOINTS:
        if record.get(name, {}).get("passes"):
            digests.setdefault(record[name]["weights"], name)
    return sorted(digests.values(), key=lambda name: record[name]["parameters"])


def scan_one(name: str) -> None:
    """Write the surveys of a checkpoint and of its twin."""
    checkpoint, folder = CHECKPOINTS[name], convert.folder(name)
    text = text_of(checkpoint, folder)
    SURVEYS.mkdir(parents=True, exist_ok=True)
    for kind, options in (("", {}), (".random", {"random_init": True})):
        start = time.monotonic()
        survey = attnscope.scan(str(folder), text, **SETTINGS, **options)
        survey.save(SURVEYS / f"{name}{kind}.json.gz")
        wrong = [finding.kind for finding in attnscope.diagnose(survey) if finding.severity == "wrong"]
        print(f"{name}{kind}: {time.monotonic() - start:.0f} s, wrong: {wrong or 'nothing'}", flush=True)


def entry(name: str) -> Entry:
    """Return the entry of a scanned checkpoint."""
    checkpoint = CHECKPOINTS[name]
    twin = SURVEYS / f"{name}.random.json.gz"
    facts = {
        "name": name,
        "family": checkpoint.family,
        "domain": checkpoint.domain,
        "licence": checkpoint.licence,
        "source": checkpoint.packages[0].requirement,
        "text": checkpoint.corpus,
    }
    survey = attnscope.Survey.load(SURVEYS / f"{name}.json.gz")
    return entry_of(survey, attnscope.Survey.load(twin) if twin.is_file() else None, facts)


def build() -> Atlas:
    """Write the atlas: first the numbers, then what the findings say of each model beside the others."""
    names = [name for name in passed() if (SURVEYS / f"{name}.json.gz").is_file()]
    entries = sorted(map(entry, names), key=lambda each: (each.family, each.parameters))
    _write(entries)
    first = ranges.packaged()
    judged = []
    for each in entries:
        found = attnscope.diagnose(attnscope.Survey.load(SURVEYS / f"{each.name}.json.gz"))
        said = tuple((finding.kind, finding.severity) for finding in found)
        placed = placement_of(each.name, each.parameters, each.stacks, first)
        judged.append(replace(each, findings=said, inside=placed.inside))
    return _write(judged)


def _write(entries: list[Entry]) -> Atlas:
    """Write the atlas into the package, and let it be read again."""
    atlas = Atlas(tuple(entries), SETTINGS, attnscope.__version__)
    atlas.save(PACKAGED)
    ranges.packaged.cache_clear()
    return atlas


def main(words: list[str]) -> None:
    names = [word for word in words if not word.startswith("--")]
    if "--build" not in words:
        for name in names or [name for name in passed() if not (SURVEYS / f"{name}.random.json.gz").is_file()]:
            try:
                scan_one(name)
            except Exception as error:  # the others are still to be scanned
                print(f"{name}: FAILED {type(error).__name__}: {error}", flush=True)
    atlas = build()
    wrong = [f"{e.name}: {kind}" for e in atlas.entries for kind, severity in e.findings if severity == "wrong"]
    print(f"{atlas}, {PACKAGED.stat().st_size / 1e6:.2f} MB; wrong: {wrong or 'nothing'}")


if __name__ == "__main__":
    main(sys.argv[1:])
