"""Which heads of many are taken out: estimates choose in turn, batch by batch, while heads that matter are found."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from attnscope.commands.paths import shortlist
from attnscope.commands.paths.effect_record import Effects, HeadEffect
from attnscope.commands.paths.shortlist import largest_in_turn, measured_in_batches

Place = tuple[int, int]


def test_sizes_choose_in_turn() -> None:
    sizes = [(0.0, 9.0), (-5.0, 1.0), (4.0, 0.0), (3.0, 8.0)]
    assert largest_in_turn("abcd", sizes, 3) == ["b", "a", "c"]
    assert largest_in_turn("abcd", sizes, 9) == ["b", "a", "c", "d"]
    assert largest_in_turn("abcd", [(one,) for one, _ in sizes], 2) == ["b", "c"]
    assert largest_in_turn("", [], 2) == []


def test_a_size_may_have_two_turns() -> None:
    sizes = [(6.0, 1.0, 0.0), (5.0, 2.0, 0.0), (4.0, 3.0, 0.0), (3.0, 9.0, 0.0), (0.0, 0.0, 7.0), (2.0, 0.0, 0.0)]
    assert largest_in_turn("abcdef", sizes, 6, shortlist.TURNS[3]) == ["a", "d", "b", "e", "c", "f"]


def judged(heads: int, needed: set[int], monkeypatch: pytest.MonkeyPatch, most: int = 12) -> list[list[int]]:
    """Return the batches in which heads of one block are measured. The estimates rank them 0, 1, 2 and so on."""
    monkeypatch.setattr(shortlist, "ALL", 6)
    monkeypatch.setattr(shortlist, "SOME", 4)
    monkeypatch.setattr(shortlist, "MOST", most)
    batches: list[list[int]] = []

    def measure(some: Sequence[Place]) -> list[HeadEffect]:
        batches.append([head for _, head in some])
        return [HeadEffect(0, head, 1.0, 0.1 if head in needed else 0.8) for _, head in some]

    every = [(0, head) for head in range(heads)]
    found = Effects("zero", "zero", 5.0, 0.8, heads, ())
    made = measured_in_batches(every, lambda some: [[-head - 1.0] * 2 for _, head in reversed(some)], measure, found)
    assert [one.head for one in made] == sorted(head for batch in batches for head in batch)
    return batches


def test_few_heads_are_all_measured_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert judged(6, set(), monkeypatch) == [[0, 1, 2, 3, 4, 5]]


def test_a_batch_without_a_head_that_matters_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    assert judged(20, set(), monkeypatch) == [[0, 1, 2, 3]]
    assert judged(20, {1}, monkeypatch) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert judged(20, {1, 11}, monkeypatch) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_the_number_of_heads_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    assert judged(20, set(range(20)), monkeypatch) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert judged(7, set(range(7)), monkeypatch) == [[0, 1, 2, 3], [4, 5, 6]]
    assert judged(20, set(range(20)), monkeypatch, most=6) == [[0, 1, 2, 3], [4, 5]]
