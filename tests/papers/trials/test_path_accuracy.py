"""Accuracy by length of path: the exact sums end in the whole model, drawn paths have the length asked for."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from attnscope.core.experiment import UnsavedSession
from attnscope.papers.models.nano import Config, Nano
from attnscope.papers.models.nano_paths import SKIP, path_alone
from attnscope.papers.models.tasks import hits, sort_task
from attnscope.papers.trials.circle_walk import circle_walk
from attnscope.papers.trials.path_accuracy import (
    TASKS,
    Learned,
    draw_path,
    exact_accuracies,
    learned_numbers,
    learned_paths,
    sampled_accuracies,
    task_and_shape,
    whole_accuracy,
)

SMALL = Learned(2, 2, 8, (12, 6), steps=3, batch=4, rate=1e-3)


@pytest.mark.parametrize("name", TASKS)
def test_paths_of_all_lengths_sum_to_the_model(name: str) -> None:
    task, config = task_and_shape(name, SMALL, seed=0)
    model = Nano(config, 1)
    exact = exact_accuracies(model, task)
    assert exact["up_to"][-1] == whole_accuracy(model, task)
    assert {len(values) for values in exact.values()} == {config.layers + 1}
    assert exact["up_to"][0] == exact["alone"][0]


def test_sampled_paths_are_averaged() -> None:
    """Length zero has one path, however often it is drawn: the skip in every layer."""
    task = sort_task(4, 6, seed=0)
    model = Nano(Config(vocab_size=10, width=8, heads=2, layers=3, norm="post", max_tokens=8), 0)
    found = sampled_accuracies(model, task, (1, 4), np.random.default_rng(0))
    right, total = hits(path_alone(model, task.batch(task.test), (SKIP,) * 3), task.labels[task.test])
    assert found[1][0] == found[4][0] == right / total
    assert len(found[4]) == 4


def test_paths_of_a_length_are_equally_likely() -> None:
    rng = np.random.default_rng(0)
    counts = Counter(draw_path(3, 2, 2, rng) for _ in range(6000))
    assert len(counts) == 3 * 2**2
    assert all(sum(choice != SKIP for choice in path) == 2 for path in counts)
    assert max(counts.values()) < 1.3 * min(counts.values())


def test_numbers_for_the_claims() -> None:
    record = {"task": "sort", "accuracy": 0.9, "ceiling": 1.0, "majority": 0.1, "up_to": [0.1, 0.5, 0.8, 0.85, 0.9]}
    record |= {"without": [0.9, 0.2, 0.8, 0.7, 0.6], "sampled_20": [0.2, 0.4, 0.3, 0.2, 0.15]}
    numbers = learned_numbers([record])
    assert numbers["sort_loss_with_short_paths"] == [pytest.approx(0.1)]
    assert numbers["sort_loss_without_a_long_length"] == [pytest.approx(0.3)]
    assert numbers["sort_longest_paths_above_majority"] == [pytest.approx(0.05)]
    assert numbers["sort_short_over_long_paths"] == [pytest.approx(0.25)]


def test_the_seed_decides_what_is_learned() -> None:
    once, again, other = (learned_paths("sort", SMALL, (5, 20), seed, UnsavedSession()) for seed in (0, 0, 1))
    assert once == again
    assert once["loss"] != other["loss"]


def test_a_walk_is_measured_from_its_start() -> None:
    found = circle_walk("base", 4, 0.0, points=40, steps=2, applied=10, seed=0, session=UnsavedSession())
    assert found["track"][0] == [[pytest.approx(0.3), 0.0], [pytest.approx(-0.3), pytest.approx(0.0, abs=1e-4)]]
    assert len(found["track"]) == 3
    assert torch.tensor(found["gap"]).isfinite()
