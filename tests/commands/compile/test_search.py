"""The search finds the smallest width of constructions whose answer is known, also if they are not monotone."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnscope.commands.compile import search
from attnscope.commands.compile.search import Build, OutOfTimeError, SearchBudget, at_width, badness, smallest
from attnscope.core.errors import RefusalError
from attnscope.core.progress import Advance
from attnscope.heads.facts import Certificate
from attnscope.heads.head import Head
from tests.commands.compile.stand_in import Builder, certificate, head


@settings(max_examples=25)
@given(threshold=st.integers(1, 60), first=st.integers(1, 60))
def test_threshold_of_a_monotone_construction_is_found_from_any_start(threshold: int, first: int) -> None:
    found = smallest(Builder(lambda width, seed: width >= threshold), first=first, highest=64)
    assert found.certificate.reached
    assert (found.certificate.d, found.head.width) == (threshold, threshold)
    assert found.ending == "finished"


def test_nothing_below_a_proved_bound_is_tried() -> None:
    builder = Builder(lambda width, seed: True)
    found = smallest(builder, first=40, lowest=7, highest=64)
    assert found.certificate.d == 7
    assert min(width for width, _ in builder.asked) == 7


def test_search_starts_at_a_bound_above_the_first_width() -> None:
    builder = Builder(lambda width, seed: True)
    assert smallest(builder, first=2, lowest=5, highest=64).certificate.d == 5
    assert builder.asked == [(5, 0)]


def test_a_success_below_a_failure_is_found() -> None:
    """12 fails and 11 succeeds: halving alone would stop at 13."""
    found = smallest(Builder(lambda width, seed: width >= 13 or width == 11), first=8, highest=64)
    assert found.certificate.d == 11


def test_new_draws_are_tried_on_the_way_down() -> None:
    found = smallest(Builder(lambda width, seed: width >= 10 or (width >= 9 and seed == 2)), first=8, highest=64)
    assert found.certificate.d == 9
    assert found.seed == 2


def far_off_below(threshold: int) -> tuple[Build, list[int]]:
    """Return a builder whose heads fail half of the rows below the threshold, and the list of widths it built."""
    asked: list[int] = []

    def build(width: int, seed: int, advance: Advance) -> tuple[Head, Certificate]:
        asked.append(width)
        return head(width), certificate(width, reached=width >= threshold, failing=50)

    return build, asked


def test_a_width_that_was_far_off_is_not_drawn_again_and_nothing_below_it() -> None:
    build, asked = far_off_below(10)
    assert smallest(build, first=8, highest=64).certificate.d == 10
    assert (asked.count(9), asked.count(8)) == (1, 1)
    assert min(asked) == 8


def test_search_down_fails_once_and_near_the_answer() -> None:
    """Halving from 20 would try 10 and 5, far below the answer, and waste all their steps."""
    build, asked = far_off_below(12)
    assert smallest(build, first=20, highest=64).certificate.d == 12
    assert asked == [20, 15, 12, 9, 10, 11]


def test_a_forced_width_that_is_far_off_is_drawn_once() -> None:
    build, asked = far_off_below(12)
    assert not at_width(build, 5, budget=SearchBudget(restarts=4)).certificate.reached
    assert asked == [5]


def test_one_failing_row_of_a_small_pattern_is_worth_another_draw() -> None:
    def build(width: int, seed: int, advance: Advance) -> tuple[Head, Certificate]:
        return head(width), replace(certificate(width, reached=seed == 1, failing=1), n=8)

    assert at_width(build, 5, budget=SearchBudget(restarts=2)).certificate.reached


def test_a_second_draw_is_taken_where_the_first_fails() -> None:
    builder = Builder(lambda width, seed: width >= 6 and seed % 2 == 1)
    found = smallest(builder, first=4, highest=64)
    assert found.certificate.d == 6
    assert found.seed == 1


def test_every_try_is_recorded() -> None:
    builder = Builder(lambda width, seed: width >= 6)
    found = smallest(builder, first=4, highest=64, seed=5)
    assert [(one.width, one.seed) for one in found.tried] == builder.asked
    assert all(one.reached == (one.width >= 6) for one in found.tried)
    assert all(one.seconds >= 0 and one.leak == (0.001 if one.reached else 0.5) for one in found.tried)
    assert {one.seed for one in found.tried} >= {5, 6}
    assert set(asdict(found.tried[0])) >= {"width", "seed", "ratio_error", "leak", "reached", "seconds"}


def test_search_without_success_returns_the_nearest_miss() -> None:
    def build(width: int, seed: int, advance: Advance) -> tuple[Head, Certificate]:
        return head(width), certificate(width, reached=False, leak=1 / width)

    found = smallest(build, first=2, highest=50)
    assert not found.certificate.reached
    assert found.certificate.d == 50
    assert found.tried[-1].width == 50


@pytest.mark.parametrize("leak", [0.001, math.inf, math.nan])
def test_doubling_stops_if_precision_is_missing(leak: float) -> None:
    def build(width: int, seed: int, advance: Advance) -> tuple[Head, Certificate]:
        return head(width), certificate(width, reached=False, leak=leak)

    found = smallest(build, first=2, highest=2**20)
    assert not found.certificate.reached
    assert max(one.width for one in found.tried) == 2**search.STALLED


def test_interruption_keeps_the_best_head_so_far() -> None:
    found = smallest(Builder(lambda width, seed: width >= 6, stop_after=5), first=4, highest=64)
    assert found.interrupted
    assert found.certificate.reached
    assert len(found.tried) == 5
    assert found.certificate.d == min(one.width for one in found.tried if one.reached)


def test_interruption_before_the_first_head_is_raised() -> None:
    with pytest.raises(KeyboardInterrupt):
        smallest(Builder(lambda width, seed: True, stop_after=0), first=4, highest=64)


def test_time_limit_ends_a_long_try(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(10**6))
    monkeypatch.setattr(time, "process_time", lambda: float(next(now)))

    def build(width: int, seed: int, advance: Advance) -> tuple[Head, Certificate]:
        for step in range(40 if width < 8 else 0):
            advance("descending", step, 40)
        return head(width), certificate(width, reached=width >= 8)

    found = smallest(build, first=8, highest=64, budget=SearchBudget(30.0))
    assert (found.ending, found.certificate.d) == ("out of time", 8)
    with pytest.raises(OutOfTimeError):
        smallest(build, first=4, highest=64, budget=SearchBudget(30.0))


def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the clock by one that advances by a second at each call."""
    now = iter(range(10**6))
    monkeypatch.setattr(time, "process_time", lambda: float(next(now)))


def test_time_limit_once_reached_waits_for_an_accurate_head(monkeypatch: pytest.MonkeyPatch) -> None:
    ticking(monkeypatch)
    builder = Builder(lambda width, seed: width >= 16)
    found = smallest(builder, first=2, highest=64, budget=SearchBudget(1.0, "once reached"))
    assert (found.ending, found.certificate.d, found.certificate.reached) == ("out of time", 16, True)
    assert builder.asked[-1] == (16, 0)
    found = smallest(Builder(lambda width, seed: False), first=2, highest=8, budget=SearchBudget(1.0, "once reached"))
    assert (found.ending, {one.width for one in found.tried}) == ("finished", {2, 4, 8})


def test_time_limit_once_built_takes_any_head(monkeypatch: pytest.MonkeyPatch) -> None:
    ticking(monkeypatch)
    found = at_width(Builder(lambda width, seed: False), 5, budget=SearchBudget(1.0, "once built", restarts=4))
    assert (found.ending, len(found.tried), found.certificate.reached) == ("out of time", 1, False)


def test_a_construction_that_refuses_narrow_widths_is_searched_above_them() -> None:
    def build(width: int, seed: int, advance: Advance) -> tuple[Head, Certificate]:
        if width < 5:
            raise RefusalError("Too narrow for the support: ask for 5.")
        return head(width), certificate(width, reached=True)

    found = smallest(build, first=16, highest=64)
    assert found.certificate.d == 5
    assert any(one.refused.startswith("Too narrow") and math.isinf(one.leak) for one in found.tried)


def test_refusal_of_a_construction_is_raised() -> None:
    def build(width: int, seed: int, advance: Advance) -> tuple[Head, Certificate]:
        raise RefusalError("Rectangular patterns cannot be taken: use joint.")

    with pytest.raises(RefusalError, match="use joint"):
        smallest(build, first=16, highest=64)


def test_one_width_takes_several_draws_and_stops_at_the_first_success() -> None:
    builder = Builder(lambda width, seed: seed == 2)
    assert at_width(builder, 5, budget=SearchBudget(restarts=4)).seed == 2
    assert builder.asked == [(5, 0), (5, 1), (5, 2)]
    builder = Builder(lambda width, seed: False)
    assert not at_width(builder, 5, budget=SearchBudget(restarts=3)).certificate.reached
    assert len(builder.asked) == 3


def test_progress_has_the_width_and_the_best_so_far() -> None:
    said: list[str] = []
    smallest(
        Builder(lambda width, seed: width >= 6),
        first=4,
        highest=64,
        advance=lambda stage, done, total: said.append(stage),
    )
    assert any(stage.startswith("width 4: building") for stage in said)
    assert any(stage.startswith("width 5, 6 found") for stage in said)


def test_order_of_heads() -> None:
    narrow, wide = certificate(4, reached=True), certificate(9, reached=True)
    miss, worse = certificate(9, reached=False, leak=0.2), certificate(9, reached=False, leak=0.4)
    broken = certificate(3, reached=False, leak=math.nan)
    assert sorted([worse, broken, wide, miss, narrow], key=badness) == [narrow, wide, miss, worse, broken]
