from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from attnscope.core.errors import RefusalError
from attnscope.records.comparison import compare
from attnscope.records.load import opened
from attnscope.records.survey import Ledger, Survey, diagnose
from tests.records.survey.sample import CARDS, sample_provenance, sample_survey


def entropies(means: list[list[float]], stack: str = "decoder") -> Survey:
    ledger = Ledger(CARDS)
    for layer, row in enumerate(means):
        ledger.observe("entropy", "value", stack, "self", layer, np.array([row]))
    return ledger.survey(sample_provenance())


def test_a_survey_equals_itself() -> None:
    survey = sample_survey()
    comparison = compare(survey, survey)
    assert comparison.changes == ()
    assert comparison.appeared == comparison.disappeared == ()
    assert comparison.unchanged == len(survey.table())
    data = comparison.to_json()
    assert (data["changes"], data["unchanged"]) == ([], len(survey.table()))
    assert comparison.table().empty


def test_largest_changes_come_first() -> None:
    comparison = compare(entropies([[1.0, 2.0], [3.0, 4.0]]), entropies([[1.0, 2.5], [1.0, 4.1]]))
    changes = comparison.changes
    assert comparison.unchanged == 1
    assert [(c.layer, c.head) for c in changes] == [(1, 0), (0, 1), (1, 1)]
    first = changes[0]
    assert (first.before, first.after, first.difference) == (3.0, 1.0, -2.0)
    spread = np.std([1.0, 2.0, 3.0, 4.0, 1.0, 2.5, 1.0, 4.1])
    assert first.effect == pytest.approx(-2.0 / spread)


def test_effects_do_not_depend_on_units() -> None:
    ledger, other = Ledger(CARDS), Ledger(CARDS)
    for book, factor in ((ledger, 1.0), (other, 1.5)):
        for layer in range(3):
            value = np.array([factor + layer])
            book.observe("effective_rank", "value", "decoder", "stream", layer, 1000 * value)
            book.observe("norm_growth", "value", "decoder", "stream", layer, value)
    effects = {c.measure: c.effect for c in compare(ledger.survey({}), other.survey({})).changes if c.layer == 0}
    assert effects["effective_rank"] == pytest.approx(effects["norm_growth"])


def test_depths_and_heads_that_both_have_are_compared() -> None:
    comparison = compare(sample_survey(layers=2, heads=2), sample_survey(layers=4, heads=3))
    found = {(c.layer, c.head) for c in comparison.changes if c.measure == "entropy"}
    assert found == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_findings_that_came_and_went() -> None:
    before, after = entropies([[2.0, 2.0]]), entropies([[0.1, 0.1]])
    comparison = compare(before, after)
    assert [f.kind for f in comparison.appeared] == ["entropy_collapse"]
    assert [f.kind for f in compare(after, before).disappeared] == ["entropy_collapse"]


def series(measure: str, means: list[float]) -> Survey:
    ledger = Ledger(CARDS)
    for layer, mean in enumerate(means):
        ledger.observe(measure, "value", "decoder", "stream", layer, np.array([mean]))
    return ledger.survey(sample_provenance())


@pytest.mark.parametrize(
    ("measure", "early", "late"),
    [
        ("spike", [10.0, 5000.0, 5000.0, 5000.0], [10.0, 10.0, 10.0, 5000.0]),
        ("relative_residual", [0.8, 0.05, 0.05, 0.05], [0.8, 0.7, 0.6, 0.05]),
        ("token_cosine", [0.1, np.nan, np.nan, np.nan], [0.1, 0.1, 0.1, np.nan]),
    ],
)
def test_a_finding_that_moved_is_another_one(measure: str, early: list[float], late: list[float]) -> None:
    before, after = series(measure, early), series(measure, late)
    moved = compare(before, after)
    assert len(moved.appeared) == len(moved.disappeared) == 1
    assert moved.appeared[0].kind == moved.disappeared[0].kind
    stayed = compare(before, series(measure, [1.01 * value for value in early]))
    assert stayed.appeared == stayed.disappeared == ()


def test_what_only_one_has_is_named() -> None:
    comparison = compare(sample_survey(), entropies([[1.0, 1.0, 1.0]]))
    assert "sink_mass" in comparison.only_before
    assert comparison.only_after == ()


def test_broken_means_are_left_out() -> None:
    comparison = compare(entropies([[np.nan, 1.0]]), entropies([[1.0, 1.5]]))
    assert [c.head for c in comparison.changes] == [1]
    assert comparison.unchanged == 0


def test_table_and_json() -> None:
    comparison = compare(sample_survey(), sample_survey(seed=1))
    table = comparison.table()
    assert str(table["head"].dtype) == "Int64"
    assert table["head"].isna().any()
    assert table["effect"].abs().is_monotonic_decreasing
    data = json.loads(json.dumps(comparison.to_json(), allow_nan=False))
    assert data["changes"][0]["measure"] == comparison.changes[0].measure


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (
            entropies([[1.0]], stack="encoder"),
            "because the first is of the decoder of its model and the second of the encoder: compare models of the same"
            " kind.",
        ),
        (
            series("spike", [1.0]),
            "because they share no measure (the first has entropy; the second spike): scan both models with the same"
            " --measures.",
        ),
        (Survey.empty({}, CARDS), "because the second one holds no number: scan its model again."),
    ],
)
def test_surveys_with_nothing_in_common_are_refused(second: Survey, why: str) -> None:
    with pytest.raises(RefusalError) as caught:
        compare(entropies([[1.0]]), second)
    assert str(caught.value) == f"These surveys cannot be compared, {why}"


def test_surveys_at_other_layers_are_refused() -> None:
    ledger = Ledger(CARDS)
    ledger.observe("entropy", "value", "decoder", "self", 7, np.array([[1.0]]))
    with pytest.raises(RefusalError, match="no measure was taken at the same layer in both"):
        compare(entropies([[1.0]]), ledger.survey({}))


def test_paths_are_read(tmp_path: Path) -> None:
    first, second = sample_survey(), sample_survey(seed=1)
    (tmp_path / "scan").mkdir()
    file, folder = first.save(tmp_path / "one.json"), second.save(tmp_path / "scan" / "survey.json").parent
    assert compare(str(file), folder) == compare(first, second)
    assert diagnose(folder) == diagnose(second)
    with pytest.raises(RefusalError, match="There is no file"):
        compare(file, tmp_path / "nothing.json")
    with pytest.raises(RefusalError, match="A survey or the path of one is needed, not int"):
        opened(3, Survey)
