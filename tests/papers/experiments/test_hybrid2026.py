"""`hybrid2026`, small enough to run in every test."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attnscope.papers.experiments.hybrid2026 import hybrid2026
from attnscope.papers.trials.composing import Learning, fewer_lookups, partners, recall
from attnscope.papers.trials.composing_figures import width_for

TINY = replace(
    hybrid2026.presets["quick"],
    folds=(1, 2),
    tokens=(24,),
    fewer=(2, 24),
    fewer_rows=1,
    memory=4,
    pairs=(4, 8),
    values=20,
    partner_arguments=4,
    partner_widths=(2, 4),
    partner_rows=1,
    sums=(16,),
    sparse_tokens=32,
    blocks=(2, 4),
    sum_widths=(8, 16),
    sum_rows=1,
    composing=((2, 3, 2),),
    recalling=(3, 4),
    recalling_steps=2,
    learning=Learning(width=8, heads=2, head_width=4, queries=2, batch=2),
    narrow=Learning(width=8, heads=1, head_width=4, queries=2, batch=2),
)


def test_memory_errors_match_their_formulas() -> None:
    """Two thousand independent values: a mean square is known to a share of 1 / sqrt(1000), and 12 keys share each."""
    for pairs in (4, 8, 12, 18, 40):
        found = recall(8, pairs, 2000, seed=0)
        for name in ("delta", "sum", "least"):
            if pairs <= 8:
                assert found[name] < 1e-24
            else:
                assert found[name] == pytest.approx(found[f"{name}_formula"], rel=0.1)
        assert found["softmax"] < 1e-24


def test_the_last_lookup_is_the_one_that_counts() -> None:
    rows = fewer_lookups(3, 96, 4, seed=0)
    assert rows[-1]["accuracy"] == 1.0
    assert all(row["accuracy"] < 0.3 for row in rows[:-1])  # 24 symbols, 96 queries of 4 texts


def test_a_memory_as_wide_as_the_tables_is_a_lookup() -> None:
    rows = {(row["kinds"], row["width"]): row["accuracy"] for row in partners(6, (3, 6), 4, seed=0)}
    for kinds in ("full, full", "full, delta", "full, linear", "delta, delta"):
        assert rows[kinds, 6] == 1.0
    assert rows["delta, delta", 3] < 0.9
    assert rows["full, window", 6] < 0.9


def test_the_width_that_is_needed_is_read_between_widths() -> None:
    rows = [{"width": 16, "found": 0.8}, {"width": 64, "found": 1.0}]
    assert width_for(rows) == pytest.approx(32.0)
    assert width_for(rows[:1]) != width_for(rows[:1])  # NaN: not reached
