"""Train the runs of `bench.watch_faults`: those with a fault and the controls continue from one common beginning."""

from __future__ import annotations

import copy
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import attnscope
from attnscope.commands.watch.alarm_judge import muted_log
from bench.fault_training import AFTER, EVERY, Subject, Training, new_model
from bench.planted_faults import CAUSAL_ONLY, CONTROLS, FAULTS

ADAPTING = 250  # steps for which published weights learn the new vocabulary, once


def switched_on(subject: Subject, seed: int) -> int:
    """Return the number of the first step with the fault. It differs so that looks follow at different distances."""
    return subject.before + 5 + seed


def runs_of(subject: Subject, seed: int, folder: Path) -> Iterator[str]:
    """Train all runs of a subject and a seed that are not in the folder yet; yield the name of each."""
    own = folder / subject.name / str(seed)
    names = [n for n in (*FAULTS, *CONTROLS) if subject.causal or n not in CAUSAL_ONLY]
    missing = [n for n in names if not (own / n / "losses.json").exists()]
    if not missing:
        return
    training = Training(subject, seed, new_model(subject, seed))
    _adapt(training, folder)
    shutil.rmtree(own / "prefix", ignore_errors=True)
    torch.manual_seed(seed)
    with muted_log(), attnscope.watch(training.model, own / "prefix", every=EVERY) as watch:
        prefix = [training.step(number, 0, watch) for number in range(subject.before)]
    model, optimizer = copy.deepcopy(training.model), copy.deepcopy(training.optimizer.state_dict())
    for name in missing:
        _continue(Training(subject, seed, copy.deepcopy(model)), optimizer, name, own, prefix)
        yield f"{subject.name} {seed} {name}"


def _adapt(training: Training, folder: Path) -> None:
    """Train published weights on the new vocabulary once, and keep the result."""
    if training.subject.name == "scratch":
        return
    kept = folder / f"{training.subject.name}.pt"
    if not kept.exists():
        torch.manual_seed(0)
        first = Training(training.subject, 99, training.model)
        for number in range(ADAPTING):
            first.step(min(number, 40), number, None)
        torch.save(training.model.state_dict(), kept)
    training.model.load_state_dict(torch.load(kept, weights_only=True))


def _continue(training: Training, optimizer: dict[str, Any], name: str, own: Path, prefix: list[float]) -> None:
    subject, seed, run = training.subject, training.seed, own / name
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(own / "prefix", run)
    training.optimizer.load_state_dict(copy.deepcopy(optimizer))
    since = switched_on(subject, seed)
    order = int(name.rpartition(" ")[2]) if name in CONTROLS else 0
    torch.manual_seed(100 + seed)
    losses = list(prefix)
    with muted_log(), attnscope.watch(training.model, run, every=EVERY, resume_from=subject.before) as watch:
        for number in range(subject.before, subject.before + AFTER):
            if number == since:
                {**FAULTS, **CONTROLS}[name](training, number)
            losses.append(training.step(number, order, watch))
            if not math.isfinite(losses[-1]) and number > since + 8:
                break
    told = {"since": since + 1, "block": training.block, "losses": [x if math.isfinite(x) else None for x in losses]}
    (run / "losses.json").write_text(json.dumps(told))
