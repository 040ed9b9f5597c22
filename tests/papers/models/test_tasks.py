"""Tasks for small models, checked by hand where possible; nano as a network of paths."""

from __future__ import annotations

import math
from itertools import product
from math import comb, isclose

import numpy as np
import pytest
import torch

from attnscope.core.errors import RefusalError
from attnscope.papers.models.nano import Config, Nano
from attnscope.papers.models.nano_paths import SKIP, network_of, path_alone
from attnscope.papers.models.tasks import (
    BOS,
    IGNORED,
    CopyTask,
    Task,
    ceiling_of,
    characters,
    copying,
    hits,
    hull_task,
    loss_on,
    memorisation_task,
    on_hull,
    sort_task,
)
from attnscope.papers.trials.circle_walk import RADIUS, arcs, circle_model, gaps, walk
from attnscope.pathways.lengths import lengths


def test_sort_labels_are_the_sorted_tokens() -> None:
    task = sort_task(30, 5, seed=0)
    ids = task.inputs["input_ids"].numpy()
    assert (task.labels.numpy() == np.sort(ids, axis=1)).all()
    assert task.test == slice(30, None)
    assert task.batch(task.test)["input_ids"].shape == (5, 8)
    assert (sort_task(30, 5, seed=0).labels == task.labels).all()
    assert (sort_task(30, 5, seed=1).labels != task.labels).any()


def test_the_best_guess_uses_only_the_position() -> None:
    labels = torch.tensor([[9, 9], [0, 2], [0, 2], [1, IGNORED], [0, 0]])
    task = Task("by hand", {}, labels, 1, 3)  # the first row is for training
    assert (task.best_guess, task.majority) == pytest.approx((5 / 7, 4 / 7))
    sorting = sort_task(0, 20000, seed=0)
    # the smallest of 8 is 0 with probability 1 - .9^8, and so on; 20,000 rows: a standard error of .002 at most
    below = np.array(
        [
            [sum(comb(8, m) * p**m * (1 - p) ** (8 - m) for m in range(k, 9)) for p in np.arange(11) / 10]
            for k in range(1, 9)
        ]
    )
    assert sorting.best_guess == pytest.approx(np.diff(below, axis=1).max(axis=1).mean(), abs=0.01)


def test_hull_of_a_square_with_a_point_inside() -> None:
    assert on_hull(np.array([[0, 0], [0, 1], [1, 0], [1, 1], [0.5, 0.4]])).tolist() == [True] * 4 + [False]


def test_hull_labels_belong_to_the_points() -> None:
    task = hull_task(4, 2, seed=0)
    for points, labels in zip(task.inputs["vectors"].double().numpy(), task.labels.numpy(), strict=True):
        assert (on_hull(points) == labels).all()


def test_the_ceiling_by_hand() -> None:
    ids = np.array([[5, 5, 5, 7], [1, 2, 3, 9]])
    bits = np.array([[0, 1, 1, 0], [0, 1, 0, 1]])
    real = np.array([[True] * 4, [True, True, True, False]])
    assert ceiling_of(ids, bits, real) == 6 / 7


def test_no_model_without_positions_beats_the_ceiling_and_a_lookup_reaches_it() -> None:
    task = memorisation_task(20, 16, seed=0)
    right = total = 0
    for tokens, labels in zip(task.inputs["input_ids"], task.labels, strict=True):
        answer = torch.zeros(len(labels), 2)
        for token in tokens.unique():
            here = (tokens == token) & (labels != IGNORED)
            answer[here] = torch.bincount(labels[here], minlength=2).float()
        some = hits(answer[None], labels[None])
        right, total = right + some[0], total + some[1]
    assert isclose(right / total, task.ceiling)
    assert task.ceiling < 1


def test_padding_is_neither_learned_nor_counted() -> None:
    task = memorisation_task(6, 8, seed=0)
    model = Nano(Config(vocab_size=int(task.inputs["input_ids"].max()) + 1, out=2, width=8, heads=2, layers=1))
    assert loss_on(task, model, torch.Generator().manual_seed(0), 4).isfinite()
    assert hits(torch.zeros(6, 8, 2), task.labels)[1] == int(task.inputs["attention_mask"].sum())


@pytest.mark.parametrize("norm", ["post", "pre", "none"])
def test_a_nano_is_the_sum_of_its_paths(norm: str) -> None:
    config = Config(vocab_size=9, width=12, heads=2, layers=3, norm=norm, max_tokens=8)  # type: ignore[arg-type]
    model = Nano(config, 1).double()
    inputs = {"input_ids": torch.randint(0, 9, (2, 6)), "attention_mask": torch.tensor([[1] * 6, [1] * 4 + [0] * 2])}
    network = network_of(model, inputs)
    assert torch.allclose(network.output, model(**inputs), atol=1e-12)
    assert torch.allclose(list(lengths(network).cumulative())[-1], network.output, atol=1e-10)


def test_a_path_alone_is_the_model_where_there_is_one_path_only() -> None:
    """With one head and no skip, the only path takes the head in every block, so both computations must agree."""
    model = Nano(Config(vocab_size=9, width=12, heads=1, layers=3, norm="post", skip=0, max_tokens=8), 1).double()
    inputs = {"input_ids": torch.randint(0, 9, (2, 6))}
    assert torch.allclose(path_alone(model, inputs, (0, 0, 0)), model(**inputs), atol=1e-12)


def test_paths_run_alone_do_not_add_up() -> None:
    """The two measurements differ: with norms and softmax, paths run alone are not terms of the model."""
    model = Nano(Config(vocab_size=9, width=12, heads=2, layers=2, norm="post", biases=False, max_tokens=8), 1).double()
    inputs = {"input_ids": torch.randint(0, 9, (2, 6))}
    every = list(product((SKIP, 0, 1), repeat=2))
    assert len(every) == sum(comb(2, k) * 2**k for k in range(3))
    total = torch.stack([path_alone(model, inputs, path) for path in every]).sum(0)
    assert (total - model(**inputs)).abs().max() > 0.1
    exact = torch.stack(list(lengths(network_of(model, inputs)).cumulative()))[-1]
    assert torch.allclose(exact, model(**inputs), atol=1e-10)


def test_the_arcs_are_one_circle() -> None:
    track = arcs(100)
    assert track.shape == (50, 2, 2)
    assert torch.allclose(track.norm(dim=-1), torch.tensor(RADIUS))
    assert torch.allclose(gaps(track), torch.tensor(1.0))
    assert (track[1, 0] - track[0, 0]).norm() == pytest.approx((track[0, 1] - track[-1, 0]).norm().item(), rel=1e-4)


def test_a_walk_applies_the_model_to_its_own_answers() -> None:
    model = circle_model("skip and mlp", 8, seed=0)
    track = walk(model, arcs(100)[0], 3)
    with torch.no_grad():
        assert torch.equal(track[2], model(vectors=model(vectors=arcs(100)[:1]))[0])
    assert len(track) == 4


TASK = CopyTask(symbols=12, triggers=3, back=2, tokens=30)


@pytest.mark.parametrize("bos", [True, False])
def test_token_after_a_trigger_is_copied(bos: bool) -> None:
    task = CopyTask(12, 3, back=2, tokens=30, bos=bos)
    text = copying(task, 40, 0)
    assert text.ids.shape == (40, 31)
    assert bool((text.ids[:, 0] == BOS).all()) == bos
    copied = 0
    for row in text.ids.tolist():
        for place in range(bos + 3, len(row)):
            if row[place - 1] <= 3 and row[place - 3] > 3:
                assert row[place] == row[place - 3]
                copied += 1
    assert copied > 100
    # what is not copied is drawn among 12 symbols, so the floor counts the drawn ones
    assert text.floor == pytest.approx(math.log(12) * (1 - copied / (40 * 30)), abs=1e-12)


def test_rows_depend_on_the_seed_alone() -> None:
    assert torch.equal(copying(TASK, 5, 1).ids, copying(TASK, 5, 1).ids)
    assert not torch.equal(copying(TASK, 5, 1).ids, copying(TASK, 5, 2).ids)


def test_a_task_without_anything_to_copy_is_refused() -> None:
    with pytest.raises(RefusalError, match="fewer triggers"):
        CopyTask(symbols=3, triggers=3)


def test_held_out_windows_of_the_book_are_never_trained_on() -> None:
    shown, held = characters(20, 50, 0), characters(20, 50, 0, held_out=True)
    assert shown.vocabulary == held.vocabulary
    assert shown.ids.shape == (50, 21)
    assert int(shown.ids[:, 0].max()) == BOS < int(shown.ids[:, 1:].min())
    assert not {tuple(row) for row in shown.ids.tolist()} & {tuple(row) for row in held.ids.tolist()}
