"""Train small models that differ only in attention, with the same data, initial weights and order of batches.

    row = trained_alike(task, config, Training(), "hybrid", seed, session, core=lambda: Core(hybrid_normalised, config))
    row["accuracy"]

`core` returns the attention of one block: a plain function, or a `Core`, whose tensors are trained. `make` builds the
model if it is not a plain `Nano`; `also` returns further numbers about the trained model.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn

from attnscope.commands.treat.train import Recipe, train
from attnscope.core.experiment import Figure, Point, Session
from attnscope.core.variant import Size, Variant
from attnscope.matrix.visibility import AttentionInputs
from attnscope.papers.models.nano import Attend, Block, Config, Nano, scaled_dot_product
from attnscope.papers.models.tasks import Task, hull_task, loss_on, sort_task
from attnscope.papers.trials.curves import Rows, select
from attnscope.papers.trials.path_accuracy import whole_accuracy

TASKS = ("sort", "hull")
Also = Callable[[Nano, Task], Mapping[str, Any]]


@dataclass(frozen=True)
class Training:
    steps: int = 400
    batch: int = 64
    rate: float = 3e-3
    decay: float = 0.1


@dataclass(frozen=True)
class Shape:
    """Sizes of the models, and the number of training and test sequences."""

    layers: int = 2
    heads: int = 2
    width: int = 48
    data: tuple[int, int] = (2000, 200)


def task_of(name: str, shape: Shape, seed: int) -> tuple[Task, Config]:
    """Return a task (sorting or convex hulls) and the configuration of an encoder for it."""
    width = shape.width
    sizes: dict[str, Any] = {"width": width, "heads": shape.heads, "layers": shape.layers, "mlp": 2 * width}
    if name == "sort":
        task = sort_task(*shape.data, seed)
        return task, Config(vocab_size=task.classes, max_tokens=task.labels.shape[1], **sizes)
    return hull_task(*shape.data, seed), Config(inputs=2, inputs_hidden=width, out=2, positions="none", **sizes)


class Core(nn.Module):
    """A variant of kind pattern or logits, with its trainable tensors, as the attention of one nano block."""

    def __init__(self, variant: Variant, config: Config, **settings: Any) -> None:
        super().__init__()
        self.variant, self.settings = variant, settings
        accepted = inspect.signature(variant.start).parameters
        size = Size(config.heads, config.dim, config.width, layers=config.layers)
        tensors = variant.start(size, **{name: value for name, value in settings.items() if name in accepted})
        for name, tensor in tensors.items():
            if name.rpartition("_")[2] == "projection":  # drawn at random, not trained
                self.register_buffer(name, tensor)
            else:
                self.register_parameter(name, nn.Parameter(tensor))
        self.own = tuple(tensors)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
        own = {name: getattr(self, name) for name in self.own}
        mixed: Tensor = self.variant(AttentionInputs(query, key, value, mask, scale=scale), **own, **self.settings)
        return mixed


def trained_alike(
    task: Task,
    config: Config,
    how: Training,
    kind: str,
    seed: int,
    session: Session,
    *,
    core: Callable[[], Attend] = lambda: scaled_dot_product,
    make: Callable[[Config, int], Nano] = Nano,
    also: Also | None = None,
) -> dict[str, Any]:
    """Train a model; return its last loss, its accuracy on held-out rows and the accuracies of guessing."""
    model = make(config, seed)
    for block in model.blocks:
        assert isinstance(block, Block)
        block.attention.attend = core()
    losses = train(
        model,
        lambda nano, rng: loss_on(task, nano, rng, how.batch),
        Recipe(how.steps, how.rate, decay=how.decay),
        seed=seed,
        kept=session.state_path(f"{task.name}-{kind}-{seed}"),
        advance=session.advance,
        stage=f"{task.name}, {kind}, seed {seed}",
    )
    return {
        "task": task.name,
        "kind": kind,
        "seed": seed,
        "loss": float(np.mean(losses[-20:])),
        "accuracy": whole_accuracy(model, task),
        "majority": task.majority,
        "best_guess": task.best_guess,
        **(also(model, task) if also else {}),
    }


def train_kinds(
    shape: Shape,
    how: Training,
    cores: Mapping[str, Callable[[Config], Attend]],
    seeds: Sequence[int],
    session: Session,
    also: Also | None = None,
) -> list[dict[str, Any]]:
    """Train every kind of attention on every task with every seed."""

    def work(name: str, kind: str, seed: int) -> dict[str, Any]:
        task, config = task_of(name, shape, seed)
        return trained_alike(task, config, how, kind, seed, session, core=lambda: cores[kind](config), also=also)

    return [
        session.part(f"{task}-{kind}-{seed}", partial(work, task, kind, seed))
        for seed in seeds
        for task in TASKS
        for kind in cores
    ]


def has_learned(task: str, first: str = "softmax") -> str:
    """Return the condition for comparing with the first kind: its accuracy is .1 above the best guess (our limit).

    Models that learned nothing cannot be compared.
    """
    return f"{task}_{first}_over_guessing >= 0.1"


def accuracy_numbers(models: Rows, kinds: Sequence[str], first: str = "softmax") -> dict[str, list[float]]:
    """Return `TASK_accuracy_of_KIND`, `TASK_FIRST_over_KIND` and `TASK_FIRST_over_guessing` for every task and kind.

    The last is the advantage of the first kind over the best guess that ignores the inputs.
    """
    numbers: dict[str, list[float]] = {}
    for task in dict.fromkeys(row["task"] for row in models):
        scores = {kind: [row["accuracy"] for row in select(models, task=task, kind=kind)] for kind in kinds}
        guesses = [row["best_guess"] for row in select(models, task=task, kind=first)]
        numbers[f"{task}_{first}_over_guessing"] = [a - b for a, b in zip(scores[first], guesses, strict=True)]
        for kind, values in scores.items():
            numbers[f"{task}_accuracy_of_{kind}"] = values
            if kind != first:
                numbers[f"{task}_{first}_over_{kind}"] = [a - b for a, b in zip(scores[first], values, strict=True)]
    return numbers


def accuracy_figure(models: Rows, kinds: Sequence[str]) -> Figure:
    points = tuple(
        Point.over([row["accuracy"] for row in select(models, task=task, kind=kind)], task, kind)
        for kind in kinds
        for task in dict.fromkeys(row["task"] for row in models)
    )
    title, caption = "Models that differ only in attention", "Accuracy on held-out sequences; median over seeds."
    return Figure("accuracy", title, caption, "task", "accuracy", points, kind="bars")
