"""`rank2024`, small enough to run in every test."""

from __future__ import annotations

from dataclasses import replace

from attnscope.core.experiment import UnsavedSession
from attnscope.papers.experiments.rank2024 import rank2024

TINY = replace(
    rank2024.presets["quick"],
    draws=500,
    vote_widths=(4, 8),
    vote_heads=(8, 16),
    width=4,
    points=5,
    ranks=(1, 2, 4),
    more=(1, 2),
    batch=8,
    steps=10,
    test=20,
)
NOT_RUN = {"published_table"}


def test_published_numbers_are_compared_at_their_own_width_only() -> None:
    wide = replace(TINY, width=64, ranks=(1, 32, 64), steps=2)
    measured = rank2024.run(wide, (0,), UnsavedSession()).measured
    assert {f"published_rank_{rank}" for rank in (1, 32, 64)} <= set(measured)
    assert "published_rank_1" not in rank2024.run(TINY, (0,), UnsavedSession()).measured
