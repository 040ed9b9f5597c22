"""How well a trained model does its task with paths of some lengths only, measured in two ways.

exact      the model's own paths: patterns and norms frozen where the whole model had them, all (H+1)^L paths summed by
           length. Accuracy with lengths <= k (the last is the model's own), without length k, and with length k alone.
sampled    the way of the authors of arXiv:2103.03404: some paths of each length are drawn, each is run as a network of
           its own, and their outputs are averaged. These networks are no terms of the model: they do not add up to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnscope.commands.treat.train import Recipe, train
from attnscope.core.experiment import Figure, Point, Session, median
from attnscope.core.progress import Advance, silent
from attnscope.papers.models.nano import Config, Nano
from attnscope.papers.models.plant import SKIP, network_of, path_alone
from attnscope.papers.models.tasks import Task, hits, hull_task, loss_on, memorisation_task, sort_task
from attnscope.pathways.lengths import lengths

Accuracies = dict[str, list[float]]
TOKENS = 4000  # tokens followed at once: parts take layers + 1 times the memory of the stream


@torch.no_grad()
def whole_accuracy(model: Nano, task: Task) -> float:
    return _over(task, lambda batch: [model(**batch)])[0]


@torch.no_grad()
def exact_accuracies(model: Nano, task: Task) -> Accuracies:
    """By length k = 0..L: `up_to`, `without` and `alone`, in float64."""
    exact = Nano(model.config, attention=model.blocks[0].attention.attend).double()  # type: ignore[union-attr, arg-type]
    exact.load_state_dict(model.state_dict())
    count = model.config.layers + 1

    def answers(batch: dict[str, Tensor]) -> list[Tensor]:
        batch = {name: x.double() if x.is_floating_point() else x for name, x in batch.items()}
        graded = lengths(network_of(exact, batch))
        return [
            *graded.cumulative(),
            *(graded.without(k) for k in range(count)),
            *(graded.output(part) for part in graded.by_length),
        ]

    flat = _over(task, answers)
    return {name: flat[i * count : (i + 1) * count] for i, name in enumerate(("up_to", "without", "alone"))}


@torch.no_grad()
def sampled_accuracies(
    model: Nano, task: Task, counts: Sequence[int], rng: np.random.Generator, advance: Advance = silent
) -> dict[int, list[float]]:
    """For every number of samples, the accuracy by length k = 0..L of that many paths, their outputs averaged."""
    layers, heads = model.config.layers, model.config.heads
    found: dict[int, list[float]] = {count: [] for count in counts}
    for length in range(layers + 1):
        advance("paths run alone", length, layers + 1)
        paths = [draw_path(layers, heads, length, rng) for _ in range(max(counts))]

        def answers(batch: dict[str, Tensor], paths: Sequence[Sequence[int]] = paths) -> list[Tensor]:
            outputs = torch.stack([path_alone(model, batch, path) for path in paths]).cumsum(dim=0)
            return [outputs[count - 1] for count in counts]

        for count, accuracy in zip(counts, _over(task, answers), strict=True):
            found[count].append(accuracy)
    return found


def draw_path(layers: int, heads: int, length: int, rng: np.random.Generator) -> tuple[int, ...]:
    """One of the C(L, k) H^k paths of length k, all equally likely."""
    path = np.full(layers, SKIP)
    path[rng.choice(layers, size=length, replace=False)] = rng.integers(0, heads, size=length)
    return tuple(int(choice) for choice in path)


def _over(task: Task, answers: Callable[[dict[str, Tensor]], list[Tensor]]) -> list[float]:
    """The accuracy of each of several answers over everything that the task evaluates, in batches."""
    right: np.ndarray | None = None
    total = 0
    for rows in _batches(task):
        labels = task.labels[rows]
        scores = [hits(answer, labels) for answer in answers(task.batch(rows))]
        some = np.array([score[0] for score in scores])
        right = some if right is None else right + some
        total += scores[0][1]
    assert right is not None
    return [float(number) / total for number in right]


def _batches(task: Task) -> Iterator[slice]:
    first, last, step = task.test.start, task.rows, max(1, TOKENS // task.labels.shape[1])
    for start in range(first, last, step):
        yield slice(start, min(start + step, last))


# A small model trained on a task, and what paths of each length can do in it: experiment D of arXiv:2103.03404.

TASKS = ("sort", "hull", "memorisation")
Record = Mapping[str, Any]

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


@dataclass(frozen=True)
class Learned:
    """A model and how it is trained. `size` is of the data: sequences to train on, and to test on or their length."""

    layers: int
    heads: int
    width: int
    size: tuple[int, int]
    steps: int
    batch: int
    rate: float
    decay: float = 0.1


def task_and_shape(name: str, sizes: Learned, seed: int) -> tuple[Task, Config]:
    """The data and the attention-only model, with skips and a norm behind each, that the paper has for it."""
    first, second = sizes.size
    shape: dict[str, Any] = {"width": sizes.width, "heads": sizes.heads, "layers": sizes.layers, "norm": "post"}
    if name == "sort":
        task = sort_task(first, second, seed)
        return task, Config(vocab_size=task.classes, out=task.classes, max_tokens=task.labels.shape[1], **shape)
    if name == "hull":
        task = hull_task(first, second, seed)
        return task, Config(inputs=2, inputs_hidden=sizes.width, out=2, positions="none", **shape)
    task = memorisation_task(first, second, seed)
    vocabulary = int(task.inputs["input_ids"].max()) + 1
    return task, Config(vocab_size=vocabulary, out=2, positions="none", **shape)


def learned_paths(name: str, sizes: Learned, samples: Sequence[int], seed: int, session: Session) -> dict[str, Any]:
    """Train, then measure: the whole model, exact sums by length, and sampled paths run alone."""
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


def learned_numbers(learned: Sequence[Record]) -> dict[str, list[float]]:
    """What the claims ask: how much is lost with short paths only, and without any one of the longer half's lengths."""
    numbers: dict[str, list[float]] = {}
    for one in learned:
        half = (len(one["up_to"]) - 1) // 2
        found = {
            "accuracy": one["accuracy"],
            "share_of_ceiling": one["accuracy"] / one["ceiling"],
            "loss_with_short_paths": one["accuracy"] - one["up_to"][half],
            "loss_without_a_long_length": one["accuracy"] - min(one["without"][half + 1 :]),
            "longest_paths_above_majority": one["sampled_20"][-1] - one["majority"],
            "short_over_long_paths": max(one["sampled_20"][:3]) - one["sampled_20"][-1],
        }
        for name, value in found.items():
            numbers.setdefault(f"{one['task']}_{name}", []).append(value)
    return numbers


def learned_remarks(numbers: Mapping[str, Sequence[float]], learned: Sequence[Record]) -> tuple[str, ...]:
    """Where the exact view and the paper part, in words that the numbers fill."""
    said = []
    for task in TASKS:
        seeds = [one for one in learned if one["task"] == task]
        half = (len(seeds[0]["up_to"]) - 1) // 2
        whole, short = median([one["accuracy"] for one in seeds]), median([one["up_to"][half] for one in seeds])
        worst = median(numbers[f"{task}_loss_without_a_long_length"])
        ceiling = f" (ceiling {median([one['ceiling'] for one in seeds]):.3f})" if seeds[0]["ceiling"] < 1 else ""
        lost = whole - short
        verdict = "short paths suffice" if lost <= 0.05 else "this contradicts that short paths suffice"
        said.append(
            f"{task}: the whole model has {whole:.3f}{ceiling}, all its paths of length <= {half} summed {short:.3f}: "
            f"{verdict if lost <= 0.05 or lost >= 0.1 else 'too close to call'}; "
            f"leaving out one of the longer lengths costs up to {worst:.3f}."
        )
    return (
        *said,
        "A path that is re-run as a network of its own has other patterns and norms than inside the model: that it "
        "only guesses does not show that the model can do without it. The exact sums decide that.",
    )


def learned_figure(learned: Sequence[Record], lines: Mapping[str, str], name: str, title: str, caption: str) -> Figure:
    rows = []
    for task in TASKS:
        seeds = [one for one in learned if one["task"] == task]
        for key, series in lines.items():
            for k in range(len(seeds[0]["up_to"])):
                values = [one[key][k] if isinstance(one[key], list) else one[key] for one in seeds]
                rows.append(Point.over(values, k, series, task, dashed=not isinstance(seeds[0][key], list)))
    return Figure(name, title, caption, "length k", "accuracy", tuple(rows))
