"""The cases of the benchmark: every fault and every control, each in three places and sizes, planted one at a time."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from attnscope.commands.scan.trial.run import should_be_causal
from attnscope.commands.scan.trial.windows import predicted, questions, window_losses, windows_of
from attnscope.data.batches import Batches
from attnscope.hf.anatomy.anatomy import Anatomy, anatomy
from attnscope.hf.loading.load import Loaded, batches_for
from attnscope.hf.loading.options import Sampling
from bench.faults.body import Body, NotApplicableError
from bench.faults.plants import FAULTS
from bench.faults.subjects import SUBJECTS, Subject

SEEDS = range(3)
SCAN: dict[str, Any] = {"samples": 32, "max_tokens": 64, "seed": 0}
CONTROLS = ("untouched", "another_text", "another_sample", "bfloat16", "finetuned", "zero_lora")


@dataclass(frozen=True)
class Bed:
    """A subject, ready to be planted in."""

    subject: Subject
    options: dict[str, Any]  # of the scan
    prepared: Batches
    found: Anatomy


@dataclass(frozen=True)
class Case:
    """A damaged or harmlessly changed model, what it reads, and what is known about it."""

    loaded: Loaded
    text: Any
    options: dict[str, Any]  # of the scan
    facts: dict[str, Any]


def bed_of(subject_name: str) -> Bed:
    """Load a subject."""
    subject = SUBJECTS[subject_name]()
    options = SCAN | dict(subject.options)
    prepared = prepared_for(subject.loaded, subject.text, options)
    return Bed(subject, options, prepared, anatomy(subject.loaded.model, prepared.batches[0].inputs))


def prepared_for(loaded: Loaded, text: Any, options: dict[str, Any]) -> Batches:
    """Return the batches that a scan with these options reads."""
    return batches_for(loaded, text, Sampling(samples=options["samples"], max_tokens=options["max_tokens"]))


def names() -> Iterator[tuple[str, int]]:
    """Yield the name and the seed of every case, in the order in which they are planted."""
    for seed in SEEDS:
        for name in (*CONTROLS, *FAULTS):
            yield name, seed


@contextmanager
def planted(bed: Bed, name: str, seed: int) -> Iterator[Case]:
    """Yield one case. The subject is as before afterwards."""
    if name in CONTROLS:
        yield _control(bed, name, seed)
        return
    fault, loaded = FAULTS[name], bed.subject.loaded
    # The number of the case decides block and size, so that three seeds give three places and sizes.
    body = Body(loaded.model, bed.found, seed=3 * (random.Random(name).randrange(1000)) + seed)
    with body.restored(), torch.no_grad():
        fault.plant(body)
        place = {"layer": body.layer if fault.local else None, "head": body.head, "grade": body.grade}
        yield Case(loaded, bed.subject.text, bed.options, {"kind": fault.kind, **place})


def _control(bed: Bed, control: str, seed: int) -> Case:
    """Return a harmless change."""
    subject, options, facts = bed.subject, bed.options, {"kind": "control"}
    loaded = subject.loaded
    if control == "another_text":
        return Case(loaded, subject.other_text, {**options, "seed": seed}, facts)
    if control == "another_sample":
        return Case(loaded, subject.text, {**options, "seed": seed + 1}, facts)
    if control == "untouched":
        return Case(loaded, subject.text, {**options, "samples": options["samples"] * (2 + seed) // 2}, facts)
    model = copy.deepcopy(loaded.model)
    if control == "bfloat16":
        model = model.to(torch.bfloat16)
    elif control == "zero_lora":  # a product of two matrices, one of them zero, is added to every matrix
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.data += torch.randn(len(parameter), 4) @ torch.zeros(4, parameter.shape[1])
    else:
        _finetune(replace(loaded, model=model), bed, seed)
    return Case(replace(loaded, model=model), subject.text, options, facts)


def _finetune(loaded: Loaded, bed: Bed, seed: int, steps: int = 50) -> None:
    """Train for some steps at a small learning rate, as users do."""
    torch.manual_seed(seed)
    windows = windows_of(bed.prepared, 16)
    task, asked = questions(loaded, windows, should_be_causal(loaded, bed.found))
    if task is None:
        raise NotApplicableError("no loss to train")
    model: Any = loaded.model.train().requires_grad_(True)
    optimiser = torch.optim.AdamW(model.parameters(), lr=(1e-5, 2e-5, 5e-5)[seed])
    with torch.enable_grad():
        for step in range(steps):
            question = asked[step % len(asked)]
            logits = predicted(model(**question.inputs), question.targets)
            assert logits is not None
            optimiser.zero_grad()
            loss: Any = window_losses(logits, question.targets).mean()
            loss.backward()
            optimiser.step()
    model.eval().requires_grad_(False)
