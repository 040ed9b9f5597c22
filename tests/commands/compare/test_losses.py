"""Losses of two surveys: paired and unpaired differences, intervals, and sentences."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnscope.commands.compare.losses import LossChange, loss_change
from attnscope.commands.compare.record import compare
from attnscope.commands.compare.verdict import verdict
from tests.commands.compare.made import exposed, made, with_trial

BASE = (4.5, 4.6, 4.7, 4.4, 4.6, 4.5, 4.8, 4.6)
WORSE = tuple(loss + 2 + shift for loss, shift in zip(BASE, (0, 0.1, -0.1, 0.05, -0.05, 0.1, -0.1, 0), strict=True))


def change(before: tuple[float, ...], after: tuple[float, ...], **fields: Any) -> LossChange:
    found = loss_change(with_trial(made(), before), with_trial(made(), after, **fields))
    assert found is not None
    return found


def test_a_rise_of_the_loss_is_worse() -> None:
    found = change(BASE, WORSE)
    assert found.worse
    assert found.paired
    assert found.difference == pytest.approx(2.0)
    assert found.low < 2 < found.high
    assert found.high - found.low < 0.4
    assert found.bits_before == pytest.approx(found.before * 63 / 250 / math.log(2))
    assert found.sentence == "the loss rises by 2.00 nats per token (1.89 to 2.11): 4.59 → 6.59"
    fall = change(WORSE, BASE)
    assert (fall.worse, fall.better) == (False, True)
    assert fall.sentence.startswith("the loss falls by 2.00 nats per token (1.8")


def test_pairing_sees_what_the_spread_of_windows_hides() -> None:
    """Windows differ by far more than the models do."""
    before = (2.0, 9.0, 4.0, 7.0, 3.0, 8.0, 5.0, 6.0)
    after = tuple(
        loss + shift for loss, shift in zip(before, (0.1, 0.12, 0.11, 0.1, 0.09, 0.1, 0.11, 0.1), strict=True)
    )
    assert change(before, after).worse
    unpaired = change(before, after, fingerprint="other")
    assert (unpaired.paired, unpaired.worse, unpaired.unit) == (False, False, "bits per byte")


def test_equal_losses_are_the_same_to_the_last_digit() -> None:
    found = change(BASE, BASE)
    assert (found.worse, found.better) == (False, False)
    assert found.sentence == "the loss is the same to the last digit: 4.59 nats per token"
    near = change(BASE, tuple(loss + 0.001 * (-1) ** n for n, loss in enumerate(BASE)))
    assert near.sentence.startswith("the loss is the same within chance: 4.58")


def test_what_few_windows_cannot_tell_is_said() -> None:
    wide = change(BASE, tuple(loss + (-1) ** n * (1 + n / 8) for n, loss in enumerate(BASE)))
    assert not wide.worse
    assert wide.sentence.startswith("8 windows cannot tell whether the loss changes: 4.59 → 4.5")
    alone = change(BASE, tuple(loss + 3.0 * (n == 0) for n, loss in enumerate(BASE)))
    assert alone.sentence == "the loss goes 4.59 → 4.96 nats per token, and 8 windows cannot tell chance apart"
    assert "1 window cannot tell chance apart" in change((4.0,), (9.0,)).sentence


def test_other_tokens_are_compared_by_bytes() -> None:
    found = change(BASE, WORSE, fingerprint="other")
    assert found.worse
    assert found.difference == pytest.approx(2 * 63 / 250 / math.log(2))
    assert found.sentence.endswith("; their tokens differ, so the windows are not paired")
    assert "bits per byte" in found.sentence
    unknown = change(BASE, WORSE, fingerprint="other", bytes=())
    assert (unknown.worse, unknown.better, math.isnan(unknown.difference)) == (False, False, True)
    assert "the bytes of text are unknown" in unknown.sentence
    assert "masked token" in change(BASE, WORSE, task="masked token").sentence


def test_a_model_that_sees_what_it_predicts_is_not_better() -> None:
    seen = with_trial(made(), tuple(loss - 2 for loss in BASE), exposures=exposed())
    found = loss_change(with_trial(made(), BASE), seen)
    assert found is not None
    assert (found.future, found.better, found.worse) == (True, False, False)
    assert found.sentence.endswith("which means nothing: this model sees the tokens that it predicts")
    comparison = compare(with_trial(made(), BASE), seen)
    told = verdict(comparison)
    assert told.level == "critical"
    assert told.sentence.startswith("Worse: the decoder sees later tokens, from block 0 on. The loss falls by 2.00")
    assert comparison.worse()


def test_without_trials_there_is_no_loss() -> None:
    assert loss_change(made(), with_trial(made())) is None
    assert loss_change(with_trial(made(), (), task=None), with_trial(made())) is None


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0.1, 9.0), min_size=8, max_size=8), st.lists(st.floats(0.1, 9.0), min_size=8, max_size=8))
def test_both_directions_agree(one: list[float], two: list[float]) -> None:
    there, back = change(tuple(one), tuple(two)), change(tuple(two), tuple(one))
    assert there.difference == pytest.approx(-back.difference, abs=1e-9)
    assert not (there.worse and back.worse)
    assert not (there.worse and there.better)
