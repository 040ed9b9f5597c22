from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

import attnscope
from attnscope.commands.compare.record import compare
from attnscope.commands.records import opened
from attnscope.commands.scan.diagnose import diagnose
from attnscope.commands.scan.survey.builder import SurveyBuilder
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.errors import RefusalError
from tests.commands.scan.survey.sample import CARDS, sample_provenance, sample_survey
from tests.reports.charts.test_charts import rows_of


def entropies(means: list[list[float]], stack: str = "decoder") -> Survey:
    ledger = SurveyBuilder(CARDS)
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
    assert first.effect == pytest.approx(-2.0 / (0.01 * 3.0))  # a hundredth of the larger number, without an error


def test_effects_count_sampling_errors() -> None:
    """Differences of the same size count less where sequences differ more."""
    first, second = SurveyBuilder(CARDS), SurveyBuilder(CARDS)
    for book, shift in ((first, 0.0), (second, 0.5)):
        for layer, spread in enumerate((0.0, 1.0)):
            values = 3.0 + shift + spread * np.array([[-1.0], [1.0], [-1.0], [1.0]])
            book.observe("entropy", "value", "decoder", "self", layer, values)
    sure, unsure = sorted(compare(first.survey({}), second.survey({})).changes, key=lambda change: change.layer)
    assert sure.effect == pytest.approx(0.5 / (0.01 * 3.5))
    assert unsure.effect == pytest.approx(0.5 / np.sqrt(1 / 4 + 1 / 4))


def test_a_spread_near_zero_does_not_make_a_small_change_large() -> None:
    """Entropy is nearly the same in all heads; the cosine of tokens is not."""
    first, second = SurveyBuilder(CARDS), SurveyBuilder(CARDS)
    for book, entropy, cosine in ((first, 3.205, 0.239), (second, 3.206, 0.619)):
        book.observe("entropy", "value", "decoder", "self", 0, np.array([[entropy, 3.205]]))
        book.observe("token_cosine", "value", "decoder", "stream", 1, np.array([cosine]))
    largest, smallest = compare(first.survey({}), second.survey({})).changes
    assert (largest.measure, smallest.measure) == ("token_cosine", "entropy")
    assert largest.effect == pytest.approx(38.0)
    assert abs(smallest.effect) < 0.05


def test_effects_do_not_depend_on_units() -> None:
    ledger, other = SurveyBuilder(CARDS), SurveyBuilder(CARDS)
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
    ledger = SurveyBuilder(CARDS)
    for layer, mean in enumerate(means):
        ledger.observe(measure, "value", "decoder", "stream", layer, np.array([mean]))
    return ledger.survey(sample_provenance())


@pytest.mark.parametrize(
    ("measure", "early", "late", "status"),
    [
        ("spike", [10.0, 5000.0, 5000.0, 5000.0], [10.0, 10.0, 10.0, 5000.0], "changed"),
        ("relative_residual", [0.8, 0.05, 0.05, 0.05], [0.8, 0.7, 0.6, 0.05], "changed"),
        ("token_cosine", [0.1, np.nan, np.nan, np.nan], [0.1, 0.1, 0.1, np.nan], "changed"),
    ],
)
def test_a_finding_that_moved_is_one_row(measure: str, early: list[float], late: list[float], status: str) -> None:
    before, after = series(measure, early), series(measure, late)
    (moved,) = compare(before, after).findings
    assert moved.status == status
    assert moved.before is not None
    assert moved.after is not None
    assert moved.before.layers != moved.after.layers
    stayed = compare(before, series(measure, [1.01 * value for value in early]))
    assert [pair.status for pair in stayed.findings] == ["same"]
    assert stayed.appeared == stayed.disappeared == ()
    assert stayed.regressions("note") == ()


def test_more_heads_and_another_severity_are_one_row() -> None:
    """Uniform attention over the 64 tokens of the sample has 3.2 nats at most."""
    top = math.lgamma(65) / 64
    few, many = ([[top, top, 1.0, 1.0]] + [[1.0] * 4] * 3, [[top, top, top, 1.0]] * 4)
    (pair,) = compare(entropies(few), entropies(many)).findings
    assert (pair.kind, pair.status, pair.trend) == ("uniform_heads", "changed", "worse")
    assert pair.before is not None
    assert pair.after is not None
    assert (len(pair.before.heads), pair.before.severity) == (2, "note")
    assert (len(pair.after.heads), pair.after.severity) == (12, "to_know")
    assert [other.trend for other in compare(entropies(many), entropies(few)).findings] == ["better"]


def test_many_surveys_are_held_against_the_first() -> None:
    steps = [entropies([[2.0, 2.0]]), entropies([[2.0, 1.5]]), entropies([[0.1, 0.1]])]
    found = compare(*steps)
    assert found.surveys == tuple(steps)
    assert (found.first, found.second) == (steps[0], steps[2])
    assert sorted((c.survey, c.head, c.before, c.after) for c in found.changes) == [
        (1, 1, 2.0, 1.5),
        (2, 0, 2.0, 0.1),
        (2, 1, 2.0, 0.1),
    ]
    assert found.unchanged == 1
    assert [(pair.kind, pair.survey, pair.status) for pair in found.findings] == [("entropy_collapse", 2, "new")]
    assert set(found.table()["survey"]) == {1, 2}
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["findings"][0]["survey"] == 2
    assert "3 surveys" in repr(found)


def test_many_surveys_behave_as_a_record(tmp_path: Path) -> None:
    found = compare(*(sample_survey(2, 2, 2, seed=seed, name=f"step {seed}") for seed in range(3)))
    path = found.save(tmp_path / "comparison.json")
    read = attnscope.load(path)
    assert read == found
    assert read.save(tmp_path / "again.json").read_bytes() == path.read_bytes()
    assert read.sentences() == found.sentences()
    assert [line["survey"] for line in rows_of(found.chart())][:1] == ["step 0"]
    assert {line["survey"] for line in rows_of(found.chart())} == {"step 0", "step 1", "step 2"}
    document = json.loads(path.read_text())
    del document["sha256"]
    few = "two surveys or more"
    for surveys, told in (([], few), (document["surveys"][:1], few), ("text", few), ([1, 2], "surveys[0]")):
        path.write_text(json.dumps(document | {"surveys": surveys}))
        with pytest.raises(RefusalError, match=re.escape(told)):
            attnscope.load(path)


def test_two_surveys_keep_their_file(tmp_path: Path) -> None:
    """Files hold `first` and `second`, as they did before there could be more."""
    found = compare(sample_survey(2, 2, 2), sample_survey(2, 2, 2, seed=1))
    document = json.loads(found.save(tmp_path / "c.json").read_text())
    assert sorted(document) == ["first", "format", "second", "sha256", "thresholds", "version"]


def test_one_survey_is_no_comparison() -> None:
    with pytest.raises(RefusalError, match="two surveys or more"):
        compare(sample_survey())


def test_the_gate_counts_what_is_new_or_worse() -> None:
    calm, bad = entropies([[2.0, 2.0]] * 3), entropies([[2.0, 2.0]] * 2 + [[0.1, 0.1]])
    assert [pair.severity for pair in compare(calm, bad).regressions("to_know")] == ["to_know"]
    assert compare(calm, bad).regressions() == compare(calm, bad).regressions("wrong") == ()
    assert compare(bad, calm).regressions("note") == compare(bad, bad).regressions("note") == ()
    assert compare(calm, bad).worse("to_know")
    assert not compare(calm, bad).worse("wrong")
    everywhere = entropies([[0.1, 0.1]] * 3)  # no healthy model is one-hot in most blocks
    assert [pair.severity for pair in compare(calm, everywhere).regressions()] == ["wrong"]
    assert [pair.status for pair in compare(bad, everywhere).regressions()] == ["worse"]
    broken = entropies([[2.0, np.nan]] * 3)
    assert [pair.status for pair in compare(calm, broken).regressions()] == ["new"]


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


def test_the_incomparable_survey_among_many_is_named() -> None:
    with pytest.raises(RefusalError, match="the third one holds no number"):
        compare(entropies([[1.0]]), entropies([[1.1]]), Survey.empty({}, CARDS))


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
            " `measures=`.",
        ),
        (Survey.empty({}, CARDS), "because the second one holds no number: scan its model again."),
    ],
)
def test_surveys_with_nothing_in_common_are_refused(second: Survey, why: str) -> None:
    with pytest.raises(RefusalError) as caught:
        compare(entropies([[1.0]]), second)
    assert str(caught.value) == f"These surveys cannot be compared, {why}"


def test_surveys_at_other_layers_are_refused() -> None:
    ledger = SurveyBuilder(CARDS)
    ledger.observe("entropy", "value", "decoder", "self", 7, np.array([[1.0]]))
    with pytest.raises(RefusalError, match="no measure was taken at the same block in both"):
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
