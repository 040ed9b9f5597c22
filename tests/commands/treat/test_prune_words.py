"""What the page of pruning says if the text does not decide: how much more of it would."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attnscope.commands.treat.prune_words import more_text, sentences, times_as_much, verdict, what_goes, what_stays
from attnscope.commands.treat.pruning_record import Cost
from attnscope.commands.treat.record import Treatment
from tests.commands.sample_treatment import sample_pruning

BUDGET = 0.01


def nothing_removed(rise: float, half: float) -> Treatment:
    """No head goes: the first one costs this much on the checking text."""
    record = sample_pruning()
    assert record.pruning is not None
    checked = (Cost(1, rise, rise - half, rise + half),)
    return replace(record, pruning=replace(record.pruning, removed=0, budget=BUDGET, checked=checked))


def removed(differences: list[float]) -> Treatment:
    """Two heads go, and the held-out loss of every sequence changes by these numbers."""
    record = sample_pruning()
    assert record.pruning is not None
    before = replace(record.arms["before"], losses=(3.0,) * len(differences))
    treated = replace(record.arms["treated"], losses=tuple(3.0 + each for each in differences))
    arms = {**record.arms, "before": before, "treated": treated}
    return replace(record, arms=arms, texts=(), pruning=replace(record.pruning, budget=BUDGET))


def test_four_times_as_much_text_halves_the_interval() -> None:
    """0.004 + 2 * 0.006 is past 0.01, and 0.004 + 2 * 0.006 / sqrt(4) is exactly 0.01."""
    assert times_as_much(0.004, 2 * 0.006 * (1 - 1e-9), BUDGET) == 4
    record = nothing_removed(0.004, 0.006 * (1 - 1e-9))
    sequences = 4 * len(record.arms["before"].losses)
    assert f"About 4 times as much text may decide: give {sequences} sequences" in more_text(record)
    assert more_text(record).startswith("The cost of 0.0 is too uncertain, not too large.")
    assert more_text(record) in what_stays(record)
    assert more_text(record) in sentences(record)


@pytest.mark.parametrize("rise", [0.011, BUDGET, BUDGET - 1e-5], ids=["past", "at", "just below"])
def test_text_is_not_requested_where_it_would_not_help(rise: float) -> None:
    assert more_text(nothing_removed(rise, 0.006)) == ""


@pytest.mark.parametrize(
    ("differences", "said"),
    [
        ([0.001, 0.002, 0.001, 0.002], ""),  # kept
        ([-0.01, 0.012, -0.01, 0.012], "The mean on the held-out text is within the budget, but its interval is not."),
        ([0.02, 0.03, 0.02, 0.03], ""),  # surely past it
    ],
)
def test_the_held_out_interval_is_judged_if_heads_go(differences: list[float], said: str) -> None:
    told = more_text(removed(differences))
    assert told.startswith(said)
    assert bool(told) == bool(said)


def test_the_largest_number_of_heads_that_was_only_uncertain_is_named() -> None:
    """Four heads cost too much, three were uncertain, and two went."""
    record = removed([0.001, 0.002, 0.001, 0.002])
    assert record.pruning is not None
    checked = (Cost(4, 0.03, 0.02, 0.04), Cost(3, 0.004, -0.001, 0.009), Cost(2, 0.001, 0.0, 0.002))
    told = more_text(replace(record, pruning=replace(record.pruning, checked=checked)))
    assert told.startswith("On the checking text 3 heads cost +0.004 (−0.001 to +0.009): too uncertain, not too large.")


def test_a_single_held_out_document_has_no_interval() -> None:
    assert "give several documents" in more_text(removed([0.02]))


def test_without_a_budget_nothing_is_requested() -> None:
    assert more_text(sample_pruning()) == ""


def test_the_verdict_says_that_the_loss_is_lower_without_the_heads() -> None:
    lower = verdict(removed([-0.02, -0.03, -0.02, -0.03])).sentence
    assert lower.endswith("lower without them, within the budget of 0.01.")
    assert "lower" not in verdict(removed([0.001, -0.001, 0.001, -0.002])).sentence


def test_documents_are_counted_beside_sequences() -> None:
    record = removed([0.001, 0.002, 0.001, 0.002])
    assert "(4 sequences, " in what_goes(record)[0]
    assert "(4 sequences of 3 documents, " in what_goes(replace(record, texts=(0, 0, 1, 2)))[0]
