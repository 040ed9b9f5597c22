"""Experiment D of arXiv:2103.03404: accuracy of a trained model that keeps only paths of certain lengths.

exact      patterns and norms are frozen at their values in the whole model, and all (H+1)^L paths (H heads, L blocks)
           are summed by length. We measure the accuracy with lengths up to k (for k = L this is the model itself),
           without length k, and with length k alone.
sampled    the authors' method: draw some paths of each length, run each as a separate network, and average their
           outputs. These networks are not terms of the model: their outputs do not add up to its output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnscope.commands.treat.train import Recipe, train
from attnscope.core.experiment import Figure, Session, median
from attnscope.core.progress import Advance, silent
from attnscope.papers.models.nano import Config, Nano
from attnscope.papers.models.nano_paths import SKIP, network_of, path_alone
from attnscope.papers.models.tasks import Task, hits, hull_task, loss_on, memorisation_task, sort_task
from attnscope.papers.trials.curves import Rows, gather, select, steps
from attnscope.pathways.lengths import lengths

BATCH_TOKENS = 4000  # tokens per batch: sums by length take (blocks + 1) times the memory of the stream
TASKS = ("sort", "hull", "memorisation")
EXACT = {
    "up_to": "all paths of lengths <= k",
    "without": "all paths but those of length k",
    "alone": "all paths of length k",
    "accuracy": "whole model",
    "majority": "most frequent label",
}
ALONE = {
    "sampled_20": "20 paths of length k, each run alone",
    "sampled_5": "5 paths of length k, each run alone",
    "accuracy": "whole model",
    "majority": "most frequent label",
}


@torch.no_grad()
def whole_accuracy(model: Nano, task: Task) -> float:
    return _accuracies(task, lambda batch: [model(**batch)])[0]


@torch.no_grad()
def exact_accuracies(model: Nano, task: Task) -> dict[str, list[float]]:
    """Return the accuracies `up_to`, `without` and `alone` for each length k = 0..L, computed in float64."""
    exact = Nano(model.config, attention=model.blocks[0].attention.attend).double()  # type: ignore[union-attr, arg-type]
    exact.load_state_dict(model.state_dict())
    count = model.config.layers + 1

    def answers(batch: dict[str, Tensor]) -> list[Tensor]:
        batch = {name: x.double() if x.is_floating_point() else x for name, x in batch.items()}
        graded = lengths(network_of(exact, batch))
        without = (graded.without(k) for k in range(count))
        return [*graded.cumulative(), *without, *(graded.output(part) for part in graded.by_length)]

    flat = _accuracies(task, answers)
    return {name: flat[i * count : (i + 1) * count] for i, name in enumerate(("up_to", "without", "alone"))}


@torch.no_grad()
def sampled_accuracies(
    model: Nano, task: Task, counts: Sequence[int], rng: np.random.Generator, advance: Advance = silent
) -> dict[int, list[float]]:
    """Return, for every number of paths, the accuracy of their averaged outputs for each length k = 0..L."""
    layers, heads = model.config.layers, model.config.heads
    by_count: dict[int, list[float]] = {count: [] for count in counts}
    for length in range(layers + 1):
        advance("paths run alone", length, layers + 1)
        paths = [draw_path(layers, heads, length, rng) for _ in range(max(counts))]

        def answers(batch: dict[str, Tensor], paths: Sequence[Sequence[int]] = paths) -> list[Tensor]:
            outputs = torch.stack([path_alone(model, batch, path) for path in paths]).cumsum(dim=0)
            return [outputs[count - 1] for count in counts]

        for count, accuracy in zip(counts, _accuracies(task, answers), strict=True):
            by_count[count].append(accuracy)
    return by_count


def draw_path(layers: int, heads: int, length: int, rng: np.random.Generator) -> tuple[int, ...]:
    """Draw a path of this length; all C(L, k) H^k of them are equally likely."""
    path = np.full(layers, SKIP)
    path[rng.choice(layers, size=length, replace=False)] = rng.integers(0, heads, size=length)
    return tuple(int(choice) for choice in path)


def _accuracies(task: Task, answers: Callable[[dict[str, Tensor]], list[Tensor]]) -> list[float]:
    """Return the accuracy of each of several answers over the rows that the task evaluates."""
    right: Any = 0
    total = 0
    for rows in _batches(task):
        scores = [hits(answer, task.labels[rows]) for answer in answers(task.batch(rows))]
        right = right + np.array([score[0] for score in scores])
        total += scores[0][1]
    return [float(number) / total for number in right]


def _batches(task: Task) -> Iterator[slice]:
    first, last, step = task.test.start, task.rows, max(1, BATCH_TOKENS // task.labels.shape[1])
    for start in range(first, last, step):
        yield slice(start, min(start + step, last))


@dataclass(frozen=True)
class Learned:
    """A model and its training. `size` is (training sequences, test sequences), or (sequences, length) to memorise."""

    layers: int
    heads: int
    width: int
    size: tuple[int, int]
    steps: int
    batch: int
    rate: float
    decay: float = 0.1


def task_and_shape(name: str, sizes: Learned, seed: int) -> tuple[Task, Config]:
    """Return a task and the configuration of the paper's model for it: attention only, with skips and post-norm."""
    shape: dict[str, Any] = {"width": sizes.width, "heads": sizes.heads, "layers": sizes.layers, "norm": "post"}
    if name == "sort":
        task = sort_task(*sizes.size, seed)
        return task, Config(vocab_size=task.classes, out=task.classes, max_tokens=task.labels.shape[1], **shape)
    if name == "hull":
        task = hull_task(*sizes.size, seed)
        return task, Config(inputs=2, inputs_hidden=sizes.width, out=2, positions="none", **shape)
    task = memorisation_task(*sizes.size, seed)
    vocabulary = int(task.inputs["input_ids"].max()) + 1
    return task, Config(vocab_size=vocabulary, out=2, positions="none", **shape)


def learned_paths(name: str, sizes: Learned, samples: Sequence[int], seed: int, session: Session) -> dict[str, Any]:
    """Train a model, then measure its accuracy, the exact sums by length, and sampled paths run alone."""
    task, config = task_and_shape(name, sizes, seed)
    model = Nano(config, seed)
    losses = train(
        model,
        lambda m, rng: loss_on(task, m, rng, sizes.batch),
        Recipe(sizes.steps, sizes.rate, decay=sizes.decay),
        seed=seed,
        kept=session.state_path(f"{name}-{seed}"),
        advance=session.advance,
        stage=f"{name}, seed {seed}",
    )
    sampled = sampled_accuracies(model, task, samples, np.random.default_rng(seed), session.advance)
    return {
        "task": name,
        "seed": seed,
        "loss": float(np.mean(losses[-20:])),
        "accuracy": whole_accuracy(model, task),
        "majority": task.majority,
        "ceiling": task.ceiling,
        **exact_accuracies(model, task),
        **{f"sampled_{count}": accuracies for count, accuracies in sampled.items()},
    }


def learned_numbers(learned: Rows) -> dict[str, list[float]]:
    """Return the quantities of the claims for every task; `loss` means accuracy lost against the whole model."""

    def numbers(row: Mapping[str, Any]) -> dict[str, float]:
        half = (len(row["up_to"]) - 1) // 2
        values = {
            "accuracy": row["accuracy"],
            "share_of_ceiling": row["accuracy"] / row["ceiling"],
            "loss_with_short_paths": row["accuracy"] - row["up_to"][half],
            "loss_without_a_long_length": row["accuracy"] - min(row["without"][half + 1 :]),
            "longest_paths_above_majority": row["sampled_20"][-1] - row["majority"],
            "short_over_long_paths": max(row["sampled_20"][:3]) - row["sampled_20"][-1],
        }
        return {f"{row['task']}_{name}": value for name, value in values.items()}

    return gather(map(numbers, learned))


def learned_remarks(numbers: Mapping[str, Sequence[float]], learned: Rows) -> tuple[str, ...]:
    """Return remarks on where the exact sums and the paper disagree."""
    words = []
    for task in TASKS:
        seeds = select(learned, task=task)
        half = (len(seeds[0]["up_to"]) - 1) // 2
        whole, short = median([row["accuracy"] for row in seeds]), median([row["up_to"][half] for row in seeds])
        worst = median(numbers[f"{task}_loss_without_a_long_length"])
        ceiling = f" (ceiling {median([row['ceiling'] for row in seeds]):.3f})" if seeds[0]["ceiling"] < 1 else ""
        lost = whole - short
        verdict = "short paths suffice" if lost <= 0.05 else "this contradicts that short paths suffice"
        words.append(
            f"{task}: the whole model has {whole:.3f}{ceiling}, all its paths of length <= {half} summed {short:.3f}: "
            f"{verdict if lost <= 0.05 or lost >= 0.1 else 'too close to call'}; "
            f"leaving out one of the longer lengths costs up to {worst:.3f}."
        )
    return (
        *words,
        "A path run as a network of its own has other patterns and norms than inside the model: if it only guesses, "
        "the model may still need it. The exact sums decide that.",
    )


def learned_figure(learned: Rows, lines: Mapping[str, str], name: str, title: str) -> Figure:
    points = []
    for task in TASKS:
        seeds = select(learned, task=task)
        for key, series in lines.items():
            constant = not isinstance(seeds[0][key], list)
            values = [[row[key]] * len(row["up_to"]) if constant else row[key] for row in seeds]
            points += steps(values, series, task, dashed=constant)
    return Figure(name, title, "Median and range over seeds.", "length k", "accuracy", tuple(points))
