"""timeline(*runs): what training did to attention, from run folders or from checkpoints.

    attnscope.timeline("run/")                       a run that `attnscope.watch` wrote, finished or not
    attnscope.timeline("run-a/", "run-b/")           the second beside the first
    attnscope.timeline("checkpoint-100", "checkpoint-200"), attnscope.timeline("out/")
                                                     checkpoints: each is scanned, in the order of steps

Only checkpoints need torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from attnscope.core.errors import RefusalError
from attnscope.core.named_path import named_path, neighbour_meant
from attnscope.core.torch_extra import asking_for_torch
from attnscope.records.timeline.read import is_run, read_run
from attnscope.records.timeline.timeline import Timeline

Told = Callable[[str, int, int], None]


SAMPLES = 16  # sequences that each checkpoint reads


def timeline(
    *runs: str | Path | Timeline,
    measures: str | None = None,
    samples: int | None = None,
    max_tokens: int | None = None,
    corpus: str | None = None,
    progress: Told | None = None,
    **scan: Any,
) -> Timeline:
    """The first run, with the others beside it. All other words are of `attnscope.scan`, and for checkpoints."""
    words = {"measures": measures, "samples": samples, "max_tokens": max_tokens, "corpus": corpus}
    scan |= {name: value for name, value in words.items() if value is not None}
    if not runs:
        raise RefusalError("A timeline is of a run: name a run folder, or checkpoints.")
    found: list[Timeline] = []
    checkpoints: list[Path] = []
    for one in runs:
        if isinstance(one, Timeline):
            found.append(one)
            continue
        path = named_path(one, "run")
        if is_run(path):
            found.append(read_run(path))
        elif is_saved(path):
            found.append(Timeline.load(path))
        else:
            checkpoints += _checkpoints(path)
    if checkpoints and found:
        raise RefusalError(
            "Runs and checkpoints do not go into one timeline: name runs, or checkpoints of one training."
        )
    if checkpoints:
        with asking_for_torch():
            from attnscope.following.checkpoints import from_checkpoints

        return from_checkpoints(checkpoints, progress, **{"samples": SAMPLES, **scan})
    if scan:
        raise RefusalError(f"{', '.join(scan)}: words of a scan, and a run is read and not scanned: leave them out.")
    first, *others = (run for one in found for run in one.runs)
    return replace(first, beside=tuple(replace(run, beside=()) for run in others))


def needs_torch(*runs: str | Path) -> bool:
    """Whether any of these is a checkpoint that would have to be scanned; what is neither is refused."""
    paths = [named_path(one, "run") for one in runs]
    scanned = [_checkpoints(path) for path in paths if not is_run(path) and not is_saved(path)]
    return bool(scanned)


def is_saved(path: Path) -> bool:
    """Whether it is a timeline.json, or a folder that holds one."""
    return path.is_file() or (path / "timeline.json").is_file()


def _checkpoints(path: Path) -> list[Path]:
    """The folder of a model, or those in a folder that a trainer filled."""
    if not path.is_dir():
        raise RefusalError(
            f"There is no run {path}: give a run folder that `attnscope.watch` wrote, or checkpoints."
            f"{neighbour_meant(path)}"
        )
    if (path / "config.json").is_file():
        return [path]
    inside = sorted(one for one in path.glob("checkpoint-*") if (one / "config.json").is_file())
    if not inside:
        raise RefusalError(
            f"{path} holds neither a run (run.json), nor a timeline (timeline.json), nor checkpoints (checkpoint-*/"
            "config.json): name another folder."
        )
    return inside
