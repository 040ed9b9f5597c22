"""Triggers and what stands behind them; the least possible loss; windows of the embedded book."""

from __future__ import annotations

import math

import pytest
import torch

from attnscope.core.errors import RefusalError
from attnscope.papers.models.tasks import BOS, CopyTask, characters, copying

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
