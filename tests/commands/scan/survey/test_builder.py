from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from attnscope.commands.scan.survey import builder
from attnscope.commands.scan.survey.builder import SurveyBuilder
from tests.commands.scan.survey.sample import CARDS

HEADS = 2
SPIKE = ("spike", "value", "decoder", "stream", 0)
ENTROPY = ("entropy", "value", "decoder", "self", 0)
WEIGHTS = ("qk_spectrum", "eta", "decoder", "self", 0)


@given(arrays.arrays(np.float32, (12, HEADS), elements=st.floats(width=32)), st.integers(1, 11))
def test_batch_size_does_not_change_the_survey(values: np.ndarray, cut: int) -> None:
    samples = np.arange(12)
    whole = SurveyBuilder(CARDS)
    whole.observe(*ENTROPY, values, {}, samples)
    parts = SurveyBuilder(CARDS)
    parts.observe(*ENTROPY, values[cut:], {}, samples[cut:])
    parts.observe(*ENTROPY, values[:cut], {}, samples[:cut])
    assert parts.survey({}) == whole.survey({})


def test_the_time_of_summing_does_not_change_the_survey(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).uniform(size=(40, HEADS))

    def run() -> object:
        book = SurveyBuilder(CARDS)
        for row in range(40):
            book.observe(*ENTROPY, values[row : row + 1], {}, np.array([row]))
        return book.survey({})

    late = run()
    monkeypatch.setattr(builder, "HELD_VALUES", 1)
    assert run() == late


def test_continuing_a_survey_equals_an_unbroken_run() -> None:
    random = np.random.default_rng(1)
    batches = [(random.uniform(size=4), random.integers(0, 9, size=4), np.arange(4) + 4 * n) for n in range(3)]

    def observe(book: SurveyBuilder, n: int) -> None:
        values, channel, samples = batches[n]
        book.observe(*SPIKE, values, {"channel": channel}, samples)
        book.observe(*WEIGHTS, np.array([[0.5, 0.25]]))

    unbroken = SurveyBuilder(CARDS)
    for n in range(3):
        observe(unbroken, n)
    first = SurveyBuilder(CARDS)
    observe(first, 0)
    resumed = SurveyBuilder.from_survey(first.survey({}))
    observe(resumed, 1)
    observe(resumed, 2)
    assert resumed.survey({}) == unbroken.survey({})


def test_weights_count_once_however_often_they_are_read() -> None:
    book = SurveyBuilder(CARDS)
    for _ in range(3):
        book.observe(*WEIGHTS, np.array([[0.5, 0.25]]))
    (cell,) = book.survey({}).cells.values()
    assert cell.moments.count.tolist() == [1, 1]


def test_the_builder_can_be_continued_after_a_survey() -> None:
    book = SurveyBuilder(CARDS)
    book.observe(*SPIKE, np.array([1.0]))
    before = book.survey({})
    book.observe(*SPIKE, np.array([3.0]))
    assert float(before.values("spike")[0]) == 1.0
    assert float(book.survey({}).values("spike")[0]) == 2.0


def test_observations_are_copied() -> None:
    values = np.array([1.0])
    book = SurveyBuilder(CARDS)
    book.observe(*SPIKE, values)
    values[0] = 100.0
    assert float(book.survey({}).values("spike")[0]) == 1.0


def test_labels_of_nonfinite_values_are_ignored() -> None:
    book = SurveyBuilder(CARDS)
    book.observe(*SPIKE, np.array([np.nan, 2.0]), {"channel": np.array([0, 5])}, np.array([0, 1]))
    (cell,) = book.survey({}).cells.values()
    assert cell.usual() == [{"channel": 5}]
    assert cell.peak.places() == [{"channel": 5, "sample": 1}]
    assert int(cell.moments.nonfinite) == 1


def test_a_cell_is_written_without_unused_fields() -> None:
    book = SurveyBuilder(CARDS)
    book.observe("sink_mass", "value", "decoder", "self", 0, np.array([[0.1, 0.9]]))
    (cell,) = book.survey({}).cells.values()
    assert set(cell.to_json()) == {"shape", "moments", "sketch", "peak"}


def test_wrong_arguments_raise() -> None:
    book = SurveyBuilder(CARDS)
    with pytest.raises(ValueError, match="no card for entropie"):
        book.observe("entropie", "value", "decoder", "self", 0, np.ones((1, 2)))
    book.observe(*ENTROPY, np.ones((1, 2)))
    with pytest.raises(ValueError, match="had shape"):
        book.observe(*ENTROPY, np.ones((1, 3)))
