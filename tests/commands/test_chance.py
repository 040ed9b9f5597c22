"""Intervals of changes in findings, compared with resampled texts; and verdicts respect them."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from attnscope.commands.compare.chance import ByText, Reading, Sequences, of_findings, over_texts, without_heads
from attnscope.commands.compare.paired_findings import NOTICEABLE
from attnscope.commands.scan.diagnose import Thresholds, diagnose
from attnscope.commands.scan.survey.cell import Cell, Key
from attnscope.commands.scan.survey.survey import Survey
from attnscope.commands.treat.outcomes import Outcome, outcomes_of
from attnscope.stats.moments import Moments
from tests.commands.scan.survey.sample import sample_survey

LIMITS = Thresholds()
KEY = Key("sink_mass", "value", "decoder", "self", 0)


@cache
def sample() -> Survey:
    return sample_survey(1, 32, 2, seed=0)


def reading_of(values: np.ndarray, struck: tuple[tuple[int, int], ...] = ()) -> Reading:
    """Return a reading of one block whose sink masses in each text are a row of `values`."""
    whole = sample()
    cell: Cell = next(cell for key, cell in whole.cells.items() if key[:2] == ("sink_mass", "value"))
    survey = replace(
        whole,
        cards={"sink_mass": whole.cards["sink_mass"]},
        cells={KEY: replace(cell, moments=Moments.of(values))},
        provenance={"corpus": {"sequences": 64, "tokens": 64 * 64}},
    )
    return Reading(survey, ByText({KEY: values}), LIMITS, struck)


def outcome(control: np.ndarray, treated: np.ndarray) -> Outcome | None:
    readings = {"control": reading_of(control), "treated": reading_of(treated)}
    found = {"before": (), **{name: diagnose(one.survey, LIMITS) for name, one in readings.items()}}
    outcomes = outcomes_of(found, "control", ("sink",), readings)
    return outcomes[0] if outcomes else None


def drawn(draw: np.random.Generator, texts: int, heads: int = 24) -> np.ndarray:
    """Draw sink masses of one model on new texts: heads spread around the threshold, and correlated within a text."""
    own = np.linspace(0.05, 0.55, heads)
    together = (
        draw.normal(0.0, 0.08, size=(texts, 1)) + draw.normal(0.0, 0.05, size=(texts, 1 + heads // 8))[:, _group(heads)]
    )
    return np.asarray(own + together + draw.normal(0.0, 0.04, size=(texts, heads)))


def _group(heads: int) -> list[int]:
    return [head // 8 for head in range(heads)]


@pytest.mark.parametrize("texts", [2, 3, 4, 8, 16, 32])
def test_the_same_model_on_other_texts_is_seldom_called_better_or_worse(texts: int) -> None:
    """Under the null hypothesis both arms are one model, and each arm reads its own texts. At most one verdict in
    twenty may be wrong. This counts over 2000 draws; the test below shows that full verdicts agree."""
    draw = np.random.default_rng(texts)
    wrong = naive = 0
    for _ in range(2000):
        first, second = drawn(draw, texts), drawn(draw, texts)
        bar = LIMITS.sink_mass
        apart = (second > bar).sum(axis=1) - (first > bar).sum(axis=1)
        difference = over_texts(apart.tolist(), whole=True)
        wrong += difference.sure(1) or difference.sure(-1)
        # The naive rule: heads as independent draws, and twice the standard deviation.
        shares = [(1 + (v > bar).sum(axis=0)) / (texts + 2) for v in (first, second)]
        spread = 2 * math.sqrt(sum(float((p * (1 - p)).sum()) for p in shares) / texts)
        naive += abs(float(apart.mean())) > spread
    # Binomial: mean 100, standard deviation sqrt(2000 * .05 * .95) = 9.7. The upper limit is four deviations above; the
    # lower limit is loose, because tests of counts are conservative with few texts.
    assert wrong <= 139
    if texts >= 8:
        assert wrong >= 40
    assert naive > 2 * 139


@pytest.mark.parametrize("texts", [2, 6, 16])
def test_verdicts_on_the_same_model_are_those_of_the_counts(texts: int) -> None:
    draw = np.random.default_rng(texts)
    verdicts = []
    for _ in range(30):
        first, second = drawn(draw, texts), drawn(draw, texts)
        bar = LIMITS.sink_mass
        difference = over_texts(((second > bar).sum(axis=1) - (first > bar).sum(axis=1)).tolist(), whole=True)
        got = outcome(first, second)
        assert got is not None
        was, now = ((v.mean(axis=0) > bar).sum() for v in (first, second))
        verdicts.append(got.judgement)
        # If the count hardly moved, the value decides; another test covers that.
        if got.judgement in ("helped", "harmed") and abs(now - was) >= max(1.0, NOTICEABLE * was):
            assert difference.sure(1 if now > was else -1)
            assert got.chance == pytest.approx(difference.chance, rel=1e-12)
    # At most one in twenty of 30: binomial mean 1.5, standard deviation 1.2; above 6 lies less than 1 in 1000.
    assert sum(verdict in ("helped", "harmed") for verdict in verdicts) <= 6
    assert "unknown" not in verdicts


def test_a_number_is_held_against_students_interval() -> None:
    draw = np.random.default_rng(0)
    wrong = sum(
        told.sure(1) or told.sure(-1)
        for told in (over_texts(draw.normal(size=3).tolist(), whole=False) for _ in range(2000))
    )
    assert abs(wrong - 100) < 49  # five standard deviations of a binomial count
    told = over_texts([1.0, 2.0, 4.0], whole=False)
    assert told.chance == pytest.approx(4.302652729911275 * np.std([1, 2, 4], ddof=1) / math.sqrt(3), rel=1e-9)


def test_one_crossing_in_each_of_two_texts_is_not_certain() -> None:
    assert not over_texts([-1, -1], whole=True).sure(-1)
    assert over_texts([-160, -158], whole=True).sure(-1)
    assert not over_texts([-160, -158], whole=True).sure(1)


def test_one_text_says_nothing_of_chance() -> None:
    assert over_texts([-100.0], whole=True).chance == math.inf
    one = outcome(np.full((1, 8), 0.6), np.full((1, 8), 0.1))
    assert one is not None
    assert (one.judgement, one.chance) == ("unknown", math.inf)


def test_an_effect_that_is_there_is_found() -> None:
    draw = np.random.default_rng(1)
    control = drawn(draw, 8)
    told = outcome(control, control - 0.2)
    assert told is not None
    assert told.judgement == "helped"
    worse = outcome(control - 0.2, control)
    assert worse is not None
    assert worse.judgement == "harmed"
    gone = outcome(np.full((8, 4), 0.6) + 0.01 * draw.normal(size=(8, 4)), np.full((8, 4), 0.1))
    assert gone is not None
    assert (gone.judgement, gone.treated) == ("helped", None)


def test_a_finding_that_barely_disappears_is_no_effect() -> None:
    draw = np.random.default_rng(2)
    near = np.array([0.305, 0.1]) + 0.1 * draw.normal(size=(16, 2))
    near += np.array([0.305, 0.1]) - near.mean(axis=0)
    away = np.array([0.295, 0.1]) + 0.1 * draw.normal(size=(16, 2))
    away += np.array([0.295, 0.1]) - away.mean(axis=0)
    told = outcome(near, away)
    assert told is not None
    assert (told.judgement, told.treated) == ("no effect", None)


def test_a_survey_without_texts_leaves_chance_unknown() -> None:
    """If an arm has no means by text, no change is reported."""
    control, treated = reading_of(np.full((8, 4), 0.6)), reading_of(np.full((8, 4), 0.1))
    blind = {"control": replace(control, by_text=None), "treated": treated}
    found = {"before": (), "control": diagnose(control.survey, LIMITS), "treated": ()}
    (told,) = outcomes_of(found, "control", ("sink",), blind)
    assert (told.judgement, told.chance) == ("unknown", math.inf)


def test_heads_that_are_gone_count_on_neither_side() -> None:
    """After pruning, two of four sinks are ignored before and after, in every text, and the other two stayed."""
    values = np.full((8, 4), 0.6) + 0.01 * np.random.default_rng(0).normal(size=(8, 4))
    struck = ((0, 0), (0, 1))
    after = values.copy()
    after[:, :2] = 0.0
    readings = {"before": reading_of(values, struck), "treated": reading_of(after, struck)}
    found = {name: without_heads(diagnose(one.survey, LIMITS), struck) for name, one in readings.items()}
    (told,) = outcomes_of(found, "before", ("sink",), readings)
    assert told.judgement == "no effect"
    assert told.before is not None
    assert told.before.heads == ((0, 2), (0, 3))
    assert [len(one[0].heads) for one in readings["before"].of_each_text(told.before) or []] == [2] * 8


def spiky(jumps: np.ndarray) -> Reading:
    """Return a reading whose largest entry is 300 entering block 0 and 300 * jump after it, by text."""
    whole = sample()
    cell = next(cell for key, cell in whole.cells.items() if key[:2] == ("spike", "value"))
    keys = [Key("spike", "value", "decoder", "stream", layer) for layer in (0, 1)]
    means = {keys[0]: np.full(len(jumps), 300.0), keys[1]: 300.0 * jumps}
    cells = {key: replace(cell, moments=Moments.of(one)) for key, one in means.items()}
    survey: Survey = replace(whole, cards={"spike": whole.cards["spike"]}, cells=cells)
    return Reading(survey, ByText(means), LIMITS)


def test_a_massive_activation_is_gone_by_all_its_numbers_and_not_by_its_size() -> None:
    """The step fell from just above the smallest factor to just below it, while the size stays far above its threshold.
    The distance of the size from its threshold must not count."""
    step = LIMITS.spike_step
    noise = np.random.default_rng(0).normal(size=12)
    noise -= noise.mean()
    control, treated = spiky(step * (1.01 + 0.2 * noise)), spiky(step * (0.99 + 0.2 * noise[::-1]))
    found = {"before": (), **{n: diagnose(r.survey, LIMITS) for n, r in (("control", control), ("treated", treated))}}
    assert [len(found[name]) for name in ("control", "treated")] == [1, 0]
    (told,) = outcomes_of(found, "control", (), {"control": control, "treated": treated})
    assert told.judgement == "no effect"
    clear = spiky(np.ones(12))
    found["treated"] = diagnose(clear.survey, LIMITS)
    (told,) = outcomes_of(found, "control", (), {"control": spiky(np.full(12, 9 * step)), "treated": clear})
    assert told.judgement == "helped"
    assert of_findings(told.any, spiky(np.full(12, 9 * step)), clear).mean == -1


def test_means_of_texts_are_means_of_their_sequences() -> None:
    seen = Sequences((7, 3, 7))
    seen(KEY, np.array([[1.0, 2.0], [5.0, math.nan]]), np.array([0, 1]))
    seen(KEY, np.array([[3.0, 4.0]]), np.array([2]))
    made = seen.by_text(sample().cards)
    assert np.array_equal(made.means[KEY], [[5.0, math.nan], [2.0, 3.0]], equal_nan=True)  # text 3, then text 7
    assert ByText.from_json(made.to_json()) == made
    assert made.texts == 2
