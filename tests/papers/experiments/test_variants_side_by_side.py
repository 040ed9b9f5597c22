"""`variants_side_by_side`, small enough to run in every test."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from attnscope.core.experiment import UnsavedSession
from attnscope.core.registry import variants
from attnscope.papers.experiments.variants_side_by_side import compared, numbers_of, variants_side_by_side

QUICK = variants_side_by_side.presets["quick"]
TINY = replace(
    QUICK, growth=replace(QUICK.growth, steps=1, rows=16, held=2, batch=2, tokens=8, width=16, hidden=8), timed=1
)


def test_every_causal_pattern_has_a_row_and_no_other() -> None:
    found = variants_side_by_side.run(TINY, (0,), UnsavedSession())
    table = next(figure for figure in found.figures if figure.kind == "table")
    assert list(dict.fromkeys(row.x for row in table.rows)) == list(compared())
    assert "doubly_normalised" not in compared()  # it sees the future
    assert {"softmax", "softpick", "mixed_heads", "learned_sink"} <= set(compared())
    assert len({row.series for row in table.rows}) * len(compared()) == len(table.rows)


def test_speed_is_shown_and_nothing_is_judged_by_it() -> None:
    asked = {bound.quantity for claim in variants_side_by_side.claims for bound in (*claim.holds, *claim.fails)}
    found = variants_side_by_side.run(TINY, (0,), UnsavedSession())
    assert not [name for name in {*asked, *found.measured} if "time" in name or "pace" in name]
    paces = next(one["paces"] for one in found.records if one["part"] == "paces")
    assert paces["softmax"] == 1.0
    assert set(paces) == set(compared())


def test_guessing_counts_as_a_learned_share_of_zero() -> None:
    """ln(symbols) is a share of 0, the least possible loss one of 1, and the worst pattern decides."""
    guess = math.log(TINY.growth.symbols)
    rows = [
        {"arm": name, "data": "copying", "loss": guess, "floor": 1.0, "sink_rate": 0.0, "entropy": 0.5, "spike": 1.0}
        for name in compared()
    ]
    assert numbers_of(TINY, rows)["worst_share_learned"] == [0.0]
    learned = [{**one, "loss": 1.0 if one["arm"] == "softmax" else (guess + 1.0) / 2} for one in rows]
    numbers = numbers_of(TINY, learned)
    assert numbers["worst_share_learned"] == pytest.approx([0.5])
    assert numbers["share_learned_by_softmax"] == [1.0]
    trains = next(claim for claim in variants_side_by_side.claims if claim.name == "every_pattern_trains")
    assert trains.judged(numbers_of(TINY, rows)).verdict == "contradicted"


def test_patterns_without_columns_of_tokens_have_no_sink_rate() -> None:
    found = variants_side_by_side.run(TINY, (0,), UnsavedSession())
    missing = {one["arm"] for one in found.records if one["part"] == "grown" and one["sink_rate"] is None}
    assert missing == {name for name in compared()[1:] if not variants()[name].card.keys_are_tokens}
