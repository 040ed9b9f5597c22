"""The heads that carry a target: the fewest that reach two thirds of the positive values, and the text if there are
none."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from attnscope.commands.paths.carriers import CARRIED, carriers, frozen_heads, heads
from attnscope.commands.paths.record import Goal, PathReport
from attnscope.commands.paths.words import verdict
from tests.reports.sample_paths import nested, sample_paths


def worth(values: list[list[float]], alone: float = 1.0, **changes: Any) -> PathReport:
    """Return a report of heads with these values, in which paths through no head contribute `alone`."""
    report = sample_paths(layers=len(values), heads=len(values[0]))
    rows = (replace(report.lengths[0], stream=alone, constants=0.0), *report.lengths[1:])
    return replace(report, head_values=nested(np.array(values)), lengths=rows, **changes)


@pytest.mark.parametrize("seed", range(8))
def test_no_smaller_set_reaches_two_thirds(seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=(3, 3))
    chosen = carriers(worth(values.tolist()))
    positive = [float(v) for v in values.ravel() if v > 0]
    enough = CARRIED * sum(positive)
    assert sum(one.value for one in chosen) >= enough * (1 - 1e-9)
    assert all(values[one.block, one.head] == one.value > 0 for one in chosen)
    fewer = combinations(positive, len(chosen) - 1)
    assert all(sum(some) < enough for some in fewer)


def test_two_of_three_equal_heads_are_two_thirds() -> None:
    for size in (1.0, 0.1, 1 / 3, 1e-9):
        assert len(carriers(worth([[size, size, size]]))) == 2


def test_heads_are_sorted_by_size_and_ties_by_place() -> None:
    found = heads(worth([[1.0, -2.0], [2.0, 1.0]]))
    assert [(one.block, one.head) for one in found] == [(0, 1), (1, 0), (0, 0), (1, 1)]


@pytest.mark.parametrize(
    ("values", "alone", "words"),
    [
        (
            [[5.0, 0.1], [0.1, 0.1]],
            1.0,
            "1 of 4 heads carries it: block 0 head 0 (+5), 94% of the +5.3 that heads add.",
        ),
        (
            [[3.0, 0.5], [3.0, 0.5]],
            1.0,
            "2 of 4 heads carry it: block 0 head 0 (+3) and block 1 head 0 (+3), together 86% of the +7 that "
            "heads add.",
        ),
        ([[1.5]], 1.0, "Its only head carries it: block 0 head 0 (+1.5)."),
        ([[1.5, 1.5]], 1.0, "All 2 heads carry it: block 0 head 0 (+1.5) and block 0 head 1 (+1.5)."),
        (
            [[1.0] * 6] * 2,
            1.0,
            "It is spread over many heads: it takes 8 of 12 to reach two thirds of the +12 that heads add; the largest "
            "is block 0 head 0 (+1), 8% of it.",
        ),
        (
            [[5.0, -4.0]],
            1.0,
            "Heads cancel: some add 5, others subtract 4, which leaves +1; the strongest are block 0 head 0 (+5) and "
            "block 0 head 1 (-4).",
        ),
        (
            [[2.0, -1.0], [-1.5, -1.5]],
            9.0,
            "Heads subtract: all 4 heads together -2, most of all block 1 head 0 (-1.5).",
        ),
        (
            [[1.0, 0.5], [-0.25, 0.0]],
            3.0,
            "Most of it comes through no head (+3 of 4.25); 67% of the +1.5 that heads add (others subtract 0.25) "
            "comes from 1 of 4 heads: block 0 head 0 (+1).",
        ),
        (
            [[-5.0, 1.0]],
            9.0,
            "Heads subtract: all 2 heads together -4, most of all block 0 head 0 (-5).",
        ),
        ([[0.01, -0.02]], 9.0, "Heads hardly move it: all 2 heads together -0.01, paths through no head +9."),
        ([[0.0, 0.0]], 0.0, "Heads hardly move it: all 2 heads together 0, paths through no head 0."),
    ],
)
def test_every_way_heads_can_share(values: list[list[float]], alone: float, words: str) -> None:
    said = frozen_heads(worth(values, alone))
    assert said == f"In the frozen network (values only) {words[0].lower()}{words[1:]}"


def test_the_sum_of_few_heads_and_no_few_heads_meet_without_a_gap() -> None:
    """Four heads are named, five are not."""
    assert "4 of 6 heads carry it" in frozen_heads(worth([[1.0] * 6]))
    assert "it takes 5 of 7" in frozen_heads(worth([[1.0] * 7]))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "Next token ' Rome' (80%)."),
        ({"goal": Goal("logit", " Rome", where="after token 2")}, "After token 2 the model says ' Rome' (80%)."),
        ({"goal": Goal("logit", " Rome", where="at token 3")}, "At token 3 the model says ' Rome' (80%)."),
        ({"goal": None}, "The model says ' Rome' (80%)."),
        ({"output": "classes", "goal": Goal("logit", " Rome")}, "The model says class ' Rome' (80%)."),
        (
            {"goal": Goal("difference", " Rome", " the", "after the last token")},
            "After the last token the model says ' Rome' (80%); the logit of ' Rome' minus that of ' the' is 8.092.",
        ),
    ],
)
def test_what_the_model_says_comes_first(changes: dict[str, Any], words: str) -> None:
    assert verdict(replace(sample_paths(), **changes)).sentence.startswith(f"{words} ")


def test_another_target_is_said_beside_what_the_model_says() -> None:
    report = sample_paths()
    last = report.lengths[-1]
    rows = (*report.lengths[:-1], replace(last, up_to=replace(last.up_to, target_probability=0.0031)))
    goal = Goal("logit", " Paris", where="after the last token")
    said = verdict(replace(report, lengths=rows, goal=goal)).sentence
    assert said.startswith("After the last token the model says ' Rome' (80%); the target is ' Paris' (0.31%). ")


def test_norms_have_no_word_and_no_probability() -> None:
    report = sample_paths()
    last = report.lengths[-1]
    rows = (*report.lengths[:-1], replace(last, up_to=replace(last.up_to, target_probability=None)))
    found = replace(report, lengths=rows, target="norm of the last stream", goal=Goal("stream_norm"))
    assert verdict(found).sentence.startswith("The norm of the last stream is ")
