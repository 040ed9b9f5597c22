"""Small models that differ in their attention alone: same data, same first weights, same order of batches.

    found = trained_alike(task, config, Training(), "hybrid", seed, desk, variant="hybrid_normalised")
    found["accuracy"]

`attention` is a core without parameters; `variant` names one of the room `variants`, which is installed with whatever
it trains. `also` is asked about the trained model while the variant is in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnscope.core.experiment import Desk, Point
from attnscope.exchanging.installed import installed
from attnscope.models.nano import Config, Nano
from attnscope.models.nano_parts import Attend, scaled_dot_product
from attnscope.models.tasks import Task, hull_task, loss_on, sort_task
from attnscope.models.train import Recipe, train
from attnscope.trials.path_accuracy import whole_accuracy

Record = Mapping[str, Any]
TASKS = ("sort", "hull")


@dataclass(frozen=True)
class Training:
    """How the models are trained, all alike."""

    steps: int = 400
    batch: int = 64
    rate: float = 3e-3
    decay: float = 0.1


@dataclass(frozen=True)
class Shape:
    """What the models are made of, and on how many sequences they are trained and tested."""

    layers: int = 2
    heads: int = 2
    width: int = 48
    data: tuple[int, int] = (2000, 200)


def task_of(name: str, shape: Shape, seed: int) -> tuple[Task, Config]:
    """Sorting symbols, or finding the corners of a convex hull; an encoder with MLPs, norms in front."""
    made: dict[str, Any] = {
        "width": shape.width,
        "heads": shape.heads,
        "layers": shape.layers,
        "mlp": 2 * shape.width,
    }
    if name == "sort":
        task = sort_task(*shape.data, seed)
        return task, Config(vocab_size=task.classes, max_tokens=task.labels.shape[1], **made)
    task = hull_task(*shape.data, seed)
    return task, Config(inputs=2, inputs_hidden=shape.width, out=2, positions="none", **made)


def trained_alike(
    task: Task,
    config: Config,
    how: Training,
    kind: str,
    seed: int,
    desk: Desk,
    *,
    attention: Attend = scaled_dot_product,
    variant: str | None = None,
    settings: Mapping[str, Any] | None = None,
    also: Callable[[Nano, Task], Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Loss at the end, and accuracy on what was not trained on, beside the most frequent label's."""
    model = Nano(config, seed, attention=attention)
    example = task.batch(slice(0, 2))
    exchanged = installed(model, variant, example_inputs=example, **(settings or {})) if variant else nullcontext()
    with exchanged:
        losses = train(
            model,
            lambda one, rng: loss_on(task, one, rng, how.batch),
            Recipe(how.steps, how.rate, decay=how.decay),
            seed=seed,
            kept=desk.place(f"{task.name}-{kind}-{seed}"),
            advance=desk.advance,
            stage=f"{task.name}, {kind}, seed {seed}",
        )
        return {
            "task": task.name,
            "kind": kind,
            "seed": seed,
            "loss": float(np.mean(losses[-20:])),
            "accuracy": whole_accuracy(model, task),
            "majority": task.majority,
            **(also(model, task) if also else {}),
        }


def accuracy_numbers(models: Sequence[Record], kinds: Sequence[str], first: str = "softmax") -> dict[str, list[float]]:
    """`sort_accuracy_of_KIND` for every kind, and `sort_FIRST_over_KIND`: by how much the first one is better."""
    numbers: dict[str, list[float]] = {}
    for task in dict.fromkeys(one["task"] for one in models):
        scores = {k: [one["accuracy"] for one in models if (one["task"], one["kind"]) == (task, k)] for k in kinds}
        for kind, values in scores.items():
            numbers[f"{task}_accuracy_of_{kind}"] = values
            if kind != first:
                numbers[f"{task}_{first}_over_{kind}"] = [a - b for a, b in zip(scores[first], values, strict=True)]
    return numbers


def accuracy_bars(models: Sequence[Record], kinds: Sequence[str]) -> tuple[Point, ...]:
    """The accuracy of every kind at every task, median over seeds."""
    return tuple(
        Point.over([one["accuracy"] for one in models if (one["task"], one["kind"]) == (task, kind)], task, kind)
        for kind in kinds
        for task in dict.fromkeys(one["task"] for one in models)
    )
