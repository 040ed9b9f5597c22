"""Small models that differ in their attention alone: same data, same first weights, same order of batches.

found = trained_alike(sort_task(1000, 200, seed), shape, exchanged(fastmax2), Training(), "fastmax2", seed, desk)
found["accuracy"]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attnscope.core.experiment import Desk
from attnscope.models.nano import Config, Nano
from attnscope.models.nano_parts import Attend
from attnscope.models.tasks import Task, loss_on
from attnscope.models.train import Recipe, train
from attnscope.trials.path_accuracy import whole_accuracy


@dataclass(frozen=True)
class Training:
    """How the models are trained, all alike."""

    steps: int = 400
    batch: int = 64
    rate: float = 3e-3
    decay: float = 0.1


def trained(
    task: Task, config: Config, attention: Attend, how: Training, name: str, seed: int, desk: Desk
) -> tuple[Nano, float]:
    """The model and its loss over the last steps."""
    model = Nano(config, seed, attention=attention)
    losses = train(
        model,
        lambda one, rng: loss_on(task, one, rng, how.batch),
        Recipe(how.steps, how.rate, decay=how.decay),
        seed=seed,
        kept=desk.place(f"{task.name}-{name}-{seed}"),
        advance=desk.advance,
        stage=f"{task.name}, {name}, seed {seed}",
    )
    return model, float(np.mean(losses[-20:]))


def trained_alike(
    task: Task, config: Config, attention: Attend, how: Training, name: str, seed: int, desk: Desk
) -> dict[str, Any]:
    """Loss at the end, and accuracy on what was not trained on, beside the most frequent label's."""
    model, loss = trained(task, config, attention, how, name, seed, desk)
    accuracy = whole_accuracy(model, task)
    return {
        "task": task.name,
        "attention": name,
        "seed": seed,
        "loss": loss,
        "accuracy": accuracy,
        "majority": task.majority,
    }
