"""Thinning keeps spikes; trends and loss trouble are found where they were planted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attnscope.commands.timeline.read import Columns
from attnscope.commands.timeline.words import loss_trouble, trends
from tests.commands.timeline.sample import sample_timeline


def test_a_spike_of_one_look_survives_in_both_directions() -> None:
    numbers = np.ones((1000, 2))
    numbers[437, 0], numbers[701, 1] = 50.0, -3.0
    columns = Columns.of(1000, 100)
    thin = columns.thin(numbers)
    assert thin.shape == (100, 2)
    assert thin[43, 0] == 50.0
    assert thin[70, 1] == -3.0
    assert (np.delete(thin[:, 0], 43) == 1).all()
    assert columns.words(1000).startswith("1,000 looks are drawn in 100 columns: of 10 neighbouring looks, each column")


def test_every_thinned_number_is_one_that_was_measured_in_its_column() -> None:
    draw = np.random.default_rng(0)
    numbers = draw.normal(size=(103, 3, 2))
    numbers[draw.random(size=numbers.shape) < 0.2] = np.nan
    numbers[:, 2, 1] = np.nan
    columns = Columns.of(103, 25)
    assert len(columns) <= 25
    thin = columns.thin(numbers)
    for column, (begin, end) in enumerate(zip(columns.begins, columns.ends, strict=True)):
        for place in np.ndindex(3, 2):
            seen = numbers[(slice(begin, end), *place)]
            value = thin[(column, *place)]
            assert np.isnan(value) if np.isnan(seen).all() else value in seen


def test_few_looks_are_not_thinned() -> None:
    numbers = np.arange(7.0)
    columns = Columns.of(7, 7)
    assert columns.thin(numbers) is numbers
    assert columns.words(7) == ""
    assert len(Columns.of(0, 10)) == 0


def test_the_loss_shows_trouble_at_the_first_look_a_fifth_above_its_least() -> None:
    timeline = sample_timeline(5)
    told = [3.0, 2.0, 2.39, 2.41, 5.0]
    run = replace(timeline, looks=tuple(replace(o, loss=v) for o, v in zip(timeline.looks, told, strict=True)))
    assert loss_trouble(run) == 200  # 2.41 > 1.2 * 2.0 > 2.39
    assert loss_trouble(replace(run, looks=run.looks[:3])) is None
    assert loss_trouble(replace(run, looks=tuple(replace(o, loss=None) for o in run.looks))) is None


def test_what_moved_most_is_the_head_that_was_planted() -> None:
    found = {trend.key[0]: trend for trend in trends(sample_timeline(30))}
    assert (found["entropy"].layer, found["entropy"].head) == (1, 0)
    assert found["entropy"].last < 0.5 < found["entropy"].first
    assert found["spike"].head is None
    assert "relative_residual" not in found  # it did not move
