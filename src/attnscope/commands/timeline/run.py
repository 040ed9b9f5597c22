"""`attnscope.timeline`: the course of attention over training, from run folders or from checkpoints.

    attnscope.timeline("run/")                       a run that `attnscope.watch` wrote, finished or not
    attnscope.timeline("run-a/", "run-b/")           the second beside the first
    attnscope.timeline("checkpoint-100", "checkpoint-200"), attnscope.timeline("out/")
                                                     checkpoints: each is scanned, in the order of steps

Only checkpoints need torch.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import attnscope
from attnscope.commands.scan.survey.survey import Survey, stack_means
from attnscope.commands.timeline.read import is_run, read_run
from attnscope.commands.timeline.record import Timeline
from attnscope.commands.watch.alarm_judge import AlarmJudge
from attnscope.commands.watch.look import Look, RunHeader, RunStack
from attnscope.commands.watch.values import Values
from attnscope.core.errors import RefusalError, refuse_without_torch
from attnscope.core.files import named_path, neighbour_meant

# Checkpoints are scanned on the same text, in the order of steps. The step comes from `trainer_state.json`, which
# transformers' Trainer writes beside the weights, else from the last number in the folder's name. The loss is the last
# one in that file up to the step, if any. Time and tokens are unknown. Alarm rules are applied as in a watch.

STATE = "trainer_state.json"


def from_checkpoints(
    folders: Sequence[Path], progress: Callable[[str, int, int], None] | None = None, **scan: Any
) -> Timeline:
    """Return one timeline of all folders; refuse a folder whose step is unknown or equal to another's."""
    ordered = _in_order(folders)
    from attnscope.commands.scan.run import scan as run_scan

    corpus = scan.pop("corpus", None)
    judge = AlarmJudge()
    looks: list[Look] = []
    first: Survey | None = None
    for number, (step, folder) in enumerate(ordered):
        if progress is not None:
            progress(f"scanning {folder.name}", number, len(ordered))
        survey = run_scan(str(folder), corpus, **scan)
        if first is not None and _shape(survey) != _shape(first):
            raise RefusalError(
                f"{folder} is another model than {ordered[0][1]} (other blocks or heads): name checkpoints of one "
                "training."
            )
        first = first or survey
        bare = Look(step, _loss(folder, step), 0.0, 0, 0.0, tuple(_values(survey)))
        looks.append(replace(bare, alarms=judge(bare)))
    assert first is not None
    model = first.provenance.get("model", {})
    header = RunHeader(
        attnscope=attnscope.__version__,
        model=str(model.get("class") or model.get("name") or "unnamed model"),
        fingerprint="",
        stacks=_shape(first),
        measures=dict(first.cards),
        settings={"checkpoints": [folder.name for _, folder in ordered], "corpus": first.provenance.get("corpus", {})},
        created=str(first.provenance.get("created", "")),
    )
    name = ordered[0][1].resolve().parent.name or "checkpoints"
    notes = (
        f"Made of {len(ordered)} checkpoints, each scanned on the same text: what happened between them is unknown.",
    )
    return Timeline(name, header, tuple(looks), notes)


def step_of(folder: Path) -> int | None:
    """Return the step of a checkpoint, or None if it is unknown."""
    told = _state(folder).get("global_step")
    if isinstance(told, int) and not isinstance(told, bool) and told >= 0:
        return told
    numbers = re.findall(r"\d+", folder.resolve().name)
    return int(numbers[-1]) if numbers and len(numbers[-1]) <= 15 else None


def _in_order(folders: Sequence[Path]) -> list[tuple[int, Path]]:
    by_step: dict[int, Path] = {}
    for folder in dict.fromkeys(folders):
        step = step_of(folder)
        if step is None:
            raise RefusalError(
                f"The step of {folder} is unknown: give it a name that ends in its step, such as run-1000."
            )
        if step in by_step:
            raise RefusalError(f"{by_step[step]} and {folder} are both at step {step}: name one of them.")
        by_step[step] = folder
    return sorted(by_step.items())


def _state(folder: Path) -> dict[str, Any]:
    try:
        state = json.loads((folder / STATE).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return state if isinstance(state, dict) else {}


def _loss(folder: Path, step: int) -> float | None:
    logged = _state(folder).get("log_history")
    told = [
        float(entry["loss"])
        for entry in (logged if isinstance(logged, list) else [])
        if isinstance(entry, dict)
        and isinstance(entry.get("loss"), int | float)
        and abs(entry["loss"]) <= sys.float_info.max
        and isinstance(entry.get("step"), int)
        and entry["step"] <= step
    ]
    return told[-1] if told and math.isfinite(told[-1]) else None


def _shape(survey: Survey) -> tuple[RunStack, ...]:
    stacks = survey.provenance.get("model", {}).get("stacks", [])
    return tuple(
        RunStack(str(stack["name"]), int(stack.get("layers") or 0), int(stack.get("heads") or 0), stack.get("causal"))
        for stack in stacks
    )


def _values(survey: Survey) -> list[Values]:
    keys = dict.fromkeys(key[:4] for key in survey.cells)
    return [Values.of(*key, np.asarray(stack_means(survey.column(*key)))) for key in keys]


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
    """Return the course of attention over training, from run folders or from checkpoints.

    Parameters
    ----------
    *runs : str, Path or Timeline
        Folders that `attnscope.watch` wrote, saved timelines, or checkpoints of one training, which are scanned.
    measures, samples, max_tokens, corpus : optional
        What each checkpoint is scanned with, as for `attnscope.scan`. By default 16 sequences are read.
    progress : callable, optional
        Called as `progress(stage, done, total)` for checkpoints.
    **scan
        Other keywords of `attnscope.scan`, for checkpoints only.

    Returns
    -------
    Timeline
        The first run, with the others in `beside`; or one timeline of all checkpoints.

    Raises
    ------
    RefusalError
        If a folder holds no run and no checkpoint, runs and checkpoints are mixed, steps are unknown or repeated, or
        keywords of a scan are given with runs.

    Examples
    --------
    >>> timeline = attnscope.timeline("run/")  # doctest: +SKIP
    >>> timeline = attnscope.timeline("checkpoint-100", "checkpoint-200", samples=8)  # doctest: +SKIP
    """
    words = {"measures": measures, "samples": samples, "max_tokens": max_tokens, "corpus": corpus}
    scan |= {name: value for name, value in words.items() if value is not None}
    if not runs:
        raise RefusalError("A timeline needs a run: name a run folder, or checkpoints.")
    timelines: list[Timeline] = []
    checkpoints: list[Path] = []
    for source in runs:
        if isinstance(source, Timeline):
            timelines.append(source)
            continue
        path = named_path(source, "run")
        if is_run(path):
            timelines.append(read_run(path))
        elif is_saved(path):
            timelines.append(Timeline.load(path))
        else:
            checkpoints += _checkpoints(path)
    if checkpoints and timelines:
        raise RefusalError(
            "Runs and checkpoints cannot be mixed in one timeline: name runs, or checkpoints of one training."
        )
    if checkpoints:
        refuse_without_torch()
        return from_checkpoints(checkpoints, progress, **{"samples": SAMPLES, **scan})
    if scan:
        raise RefusalError(f"{', '.join(scan)}: options of a scan, but a run is read and not scanned: leave them out.")
    first, *others = (run for read in timelines for run in read.runs)
    return replace(first, beside=tuple(replace(run, beside=()) for run in others))


def needs_torch(*runs: str | Path) -> bool:
    """Return whether any of these is a checkpoint, which has to be scanned; refuse unknown folders."""
    paths = [named_path(one, "run") for one in runs]
    scanned = [_checkpoints(path) for path in paths if not is_run(path) and not is_saved(path)]
    return bool(scanned)


def is_saved(path: Path) -> bool:
    """Return whether the path is a timeline.json, or a folder that holds one."""
    return path.is_file() or (path / "timeline.json").is_file()


def _checkpoints(path: Path) -> list[Path]:
    """Return the folder of a model, or the checkpoints in the output folder of a trainer."""
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
