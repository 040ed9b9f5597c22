"""Plant every fault in a subject, scan it, and keep the surveys, so that they can be judged again without models."""

from __future__ import annotations

import copy
import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import attnscope
from attnscope.commands.scan.trial.run import should_be_causal
from attnscope.commands.scan.trial.windows import predicted, questions, window_losses, windows_of
from attnscope.hf.anatomy.anatomy import anatomy
from attnscope.hf.loading.load import batches_for
from attnscope.hf.loading.options import Sampling
from bench.faults.body import Body, NotApplicableError
from bench.faults.plants import FAULTS
from bench.faults.subjects import SUBJECTS, Subject

SEEDS = range(3)
SCAN: dict[str, Any] = {"samples": 32, "max_tokens": 64, "seed": 0}
CONTROLS = ("untouched", "another_text", "another_sample", "bfloat16", "finetuned", "zero_lora")


def plant_all(subject_name: str, folder: Path, only: str | None = None) -> None:
    """Write one survey for each case into `folder`; skip those that are there."""
    subject = SUBJECTS[subject_name]()
    mine = folder / subject_name
    mine.mkdir(parents=True, exist_ok=True)
    options = SCAN | dict(subject.options)
    sampling = Sampling(samples=options["samples"], max_tokens=options["max_tokens"])
    prepared = batches_for(subject.loaded, subject.text, sampling)
    found = anatomy(subject.loaded.model, prepared.batches[0].inputs)
    for seed in SEEDS:
        for control in CONTROLS:
            with _case(mine, control, seed, only) as keep:
                if keep is not None:
                    keep(_control(subject, control, seed, found, prepared), {"kind": "control"})
        for name, fault in FAULTS.items():
            with _case(mine, name, seed, only) as keep:
                if keep is None:
                    continue
                # The number of the case decides block and size, so that three seeds give three places and sizes.
                body = Body(subject.loaded.model, found, seed=3 * (random.Random(name).randrange(1000)) + seed)
                with body.restored(), torch.no_grad():
                    fault.plant(body)
                    place = {"layer": body.layer if fault.local else None, "head": body.head, "grade": body.grade}
                    keep(attnscope.scan(subject.loaded, subject.text, **options), {"kind": fault.kind, **place})


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


def _control(subject: Subject, control: str, seed: int, found: Any, prepared: Any) -> attnscope.Survey:
    """Return the survey of a harmless change."""
    loaded, options = subject.loaded, SCAN | dict(subject.options)
    if control == "another_text":
        return attnscope.scan(loaded, subject.other_text, **{**options, "seed": seed})
    if control == "another_sample":
        return attnscope.scan(loaded, subject.text, **{**options, "seed": seed + 1})
    if control == "untouched":
        return attnscope.scan(loaded, subject.text, **{**options, "samples": options["samples"] * (2 + seed) // 2})
    model = copy.deepcopy(loaded.model)
    if control == "bfloat16":
        model = model.to(torch.bfloat16)
    elif control == "zero_lora":  # a product of two matrices, one of them zero, is added to every matrix
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.data += torch.randn(len(parameter), 4) @ torch.zeros(4, parameter.shape[1])
    else:
        _finetune(replace(loaded, model=model), prepared, found, seed)
    return attnscope.scan(replace(loaded, model=model), subject.text, **options)


def _finetune(loaded: Any, prepared: Any, found: Any, seed: int, steps: int = 50) -> None:
    """Train for some steps at a small learning rate, as users do."""
    torch.manual_seed(seed)
    windows = windows_of(prepared, 16)
    task, asked = questions(loaded, windows, should_be_causal(loaded, found))
    if task is None:
        raise NotApplicableError("no loss to train")
    model = loaded.model.train().requires_grad_(True)
    optimiser = torch.optim.AdamW(model.parameters(), lr=(1e-5, 2e-5, 5e-5)[seed])
    with torch.enable_grad():
        for step in range(steps):
            question = asked[step % len(asked)]
            logits = predicted(model(**question.inputs), question.targets)
            assert logits is not None
            optimiser.zero_grad()
            window_losses(logits, question.targets).mean().backward()
            optimiser.step()
    model.eval().requires_grad_(False)
