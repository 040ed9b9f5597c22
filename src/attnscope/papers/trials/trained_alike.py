"""Small models that differ in their attention alone: same data, same first weights, same order of batches.

    found = trained_alike(task, config, Training(), "hybrid", seed, session, core=lambda: Core(hybrid_normalised, config))
    found["accuracy"]

`core` makes the attention of one layer: a plain function, or a `Core` that trains what its variant trains. `make` makes
the model where it is not a plain one, `also` is asked about it when it is trained.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from attnscope.commands.treat.train import Recipe, train
from attnscope.core.experiment import Bound, Point, Session
from attnscope.core.variant import Size, Variant
from attnscope.papers.models.nano import Attend, Block, Config, Nano, scaled_dot_product
from attnscope.papers.models.tasks import Task, hull_task, loss_on, sort_task
from attnscope.papers.trials.path_accuracy import whole_accuracy

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


class Core(nn.Module):
    """A variant of kind pattern or logits as the attention of one nano layer, with the tensors that it trains."""

    def __init__(self, variant: Variant, config: Config, **settings: Any) -> None:
        super().__init__()
        self.variant, self.settings = variant, settings
        known = inspect.signature(variant.start).parameters
        begun = variant.start(
            Size(config.heads, config.dim, config.width, layers=config.layers),
            **{name: value for name, value in settings.items() if name in known},
        )
        for name, tensor in begun.items():
            if name.rpartition("_")[2] == "projection":  # drawn, not trained
                self.register_buffer(name, tensor)
            else:
                self.register_parameter(name, nn.Parameter(tensor))
        self.own = tuple(begun)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
        own = {name: getattr(self, name) for name in self.own}
        call = {"visible": mask, "causal": False, "scale": scale}
        mixed: Tensor = self.variant(query, key, value, **call, **own, **self.settings)
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
    also: Callable[[Nano, Task], Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Loss at the end, and accuracy on what was not trained on, beside the most frequent label's."""
    model = make(config, seed)
    for block in model.blocks:
        assert isinstance(block, Block)
        block.attention.attend = core()
    losses = train(
        model,
        lambda one, rng: loss_on(task, one, rng, how.batch),
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


def has_learned(task: str, first: str = "softmax") -> Bound:
    """What a comparison with the first kind stands on: .1 above the best guess (our limit). Models that learned nothing
    are all alike."""
    return Bound(f"{task}_{first}_over_guessing", ">=", 0.1)


def accuracy_numbers(models: Sequence[Record], kinds: Sequence[str], first: str = "softmax") -> dict[str, list[float]]:
    """`sort_accuracy_of_KIND` for every kind, `sort_FIRST_over_KIND`: by how much the first one is better; and
    `sort_FIRST_over_guessing`: by how much it is better than the best answer that does not look at the inputs."""
    numbers: dict[str, list[float]] = {}
    for task in dict.fromkeys(one["task"] for one in models):
        scores = {k: [one["accuracy"] for one in models if (one["task"], one["kind"]) == (task, k)] for k in kinds}
        guesses = [one["best_guess"] for one in models if (one["task"], one["kind"]) == (task, first)]
        numbers[f"{task}_{first}_over_guessing"] = [a - b for a, b in zip(scores[first], guesses, strict=True)]
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
