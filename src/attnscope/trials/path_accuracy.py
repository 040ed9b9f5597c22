"""How well a trained model does its task with paths of some lengths only, measured in two ways.

exact      the model's own paths: patterns and norms frozen where the whole model had them, all (H+1)^L paths summed by
           length. Accuracy with lengths <= k (the last is the model's own), without length k, and with length k alone.
sampled    the way of the authors of arXiv:2103.03404: some paths of each length are drawn, each is run as a network of
           its own, and their outputs are averaged. These networks are no terms of the model: they do not add up to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from attnscope.core.progress import Advance, silent
from attnscope.models.nano import Nano
from attnscope.models.nano_network import SKIP, network_of, path_alone
from attnscope.models.tasks import Task, hits
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
