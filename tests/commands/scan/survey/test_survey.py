from __future__ import annotations

import numpy as np
import pytest

from attnscope.commands.scan.survey.builder import SurveyBuilder
from attnscope.commands.scan.survey.cell import Key
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.errors import RefusalError
from tests.commands.scan.survey.sample import CARDS, sample_provenance, sample_survey

PLACE = ("entropy", "value", "decoder", "self", 0)


def test_values_are_means_by_layer_and_head() -> None:
    survey = sample_survey(layers=4, heads=3)
    assert survey.values("entropy").shape == (4, 3)
    assert survey.values("relative_residual").shape == (5,)
    assert survey.values("spike", site="middle").shape == (4,)
    cell = survey.cells[Key("entropy", "value", "decoder", "self", 2)]
    assert survey.values("entropy")[2].tolist() == cell.moments.mean.tolist()


def test_values_are_nan_where_nothing_was_measured() -> None:
    growth = sample_survey().values("norm_growth")
    assert np.isnan(growth[0])
    assert np.isfinite(growth[1:]).all()


def test_blocks_with_fewer_heads_are_padded_with_nan() -> None:
    ledger = SurveyBuilder(CARDS)
    for layer, heads in enumerate((2, 3)):
        ledger.observe("entropy", "value", "decoder", "self", layer, np.ones((1, heads)))
    assert np.isnan(ledger.survey({}).values("entropy")).tolist() == [[False, False, True], [False] * 3]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"measure": "entropie"}, "Did you mean 'entropy'"),
        ({"measure": "spike", "part": "secnd"}, "Did you mean 'second'"),
        ({"measure": "entropy"}, "say which with stack="),
        ({"measure": "entropy", "stack": "decoder", "site": "cross"}, "not measured at decoder cross"),
        ({"measure": "entropy", "stack": "tower"}, "it is at encoder self, decoder self"),
    ],
)
def test_values_refuses_in_one_sentence(arguments: dict[str, str], sentence: str) -> None:
    survey = sample_survey(stacks=("encoder", "decoder"))
    with pytest.raises(RefusalError, match=sentence):
        survey.values(**arguments)


def test_stacks_keep_the_order_of_the_model() -> None:
    survey = sample_survey(stacks=("vision", "text"))
    assert survey.stacks == ("vision", "text")
    assert survey.places("spike") == tuple((s, t) for s in ("vision", "text") for t in ("stream", "middle"))


def test_repr_is_short_and_html_is_escaped() -> None:
    survey = sample_survey(name="<script>alert(1)</script>")
    assert len(repr(survey)) < 200
    page = survey._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "massive activation" in page
    assert len(page) < 20_000


def test_an_empty_survey_shows_itself() -> None:
    survey = Survey.empty(sample_provenance(sequences=0), CARDS)
    assert "Nothing was measured" in survey._repr_html_()
    assert survey.stacks == ()
    assert survey.table().empty


def test_table_is_tidy() -> None:
    survey = sample_survey(layers=4, heads=3)
    table = survey.table()
    place = ["measure", "part", "stack", "site", "layer", "head"]
    numbers = ["count", "mean", "std", "min", "max", "p10", "p50", "p90", "nonfinite", "peak"]
    assert list(table.columns) == [*place, *numbers, "peak_where", "usual"]
    assert str(table["head"].dtype) == "Int64"
    assert table.loc[table["measure"] == "relative_residual", "head"].isna().all()
    rows = table[(table["measure"] == "entropy") & (table["layer"] == 1)]
    assert rows["head"].tolist() == [0, 1, 2]
    assert rows["mean"].tolist() == survey.values("entropy")[1].tolist()
    assert (table["min"] <= table["p10"]).all()
    assert (table["p10"] <= table["p50"]).all()
    assert (table["p50"] <= table["p90"]).all()
    assert (table["p90"] <= table["max"]).all()
    assert (table["peak"] == table["max"]).all()


def test_table_has_the_location_of_the_peak() -> None:
    table = sample_survey(layers=4).table()
    spikes = table[(table["measure"] == "spike") & (table["part"] == "value") & (table["site"] == "stream")]
    assert spikes["usual"].tolist() == [{"channel": 7 if 2 <= n < 4 else 3, "token": 0} for n in range(5)]
    assert set(spikes["peak_where"].iloc[2]) == {"channel", "token", "sample"}
    weights = table[table["measure"] == "qk_spectrum"]
    assert weights["usual"].isna().all()
    assert weights["peak_where"].isna().all()


def test_table_of_nothing_finite_has_no_numbers() -> None:
    ledger = SurveyBuilder(CARDS)
    ledger.observe(*PLACE, np.array([[np.nan, 1.0]]))
    table = ledger.survey({}).table()
    assert table["nonfinite"].tolist() == [1, 0]
    assert table.loc[0, ["mean", "min", "max", "p50", "peak"]].isna().all()
    assert table.loc[1, "max"] == 1.0


def test_histogram_of_one_head() -> None:
    survey = sample_survey(layers=2, heads=3, sequences=16)
    made = survey.histogram("entropy", 1, 2)
    assert made.counts.sum() == 16
    middle = (made.edges[:-1] + made.edges[1:]) / 2
    mean = float(survey.values("entropy")[1, 2])
    assert (made.counts * middle).sum() / 16 == pytest.approx(mean, rel=1 / 128)
    assert survey.histogram("relative_residual", 2).counts.sum() == 16
    assert survey.histogram("sink_mass", 0, 0, part="rate").edges.size


def test_histograms_of_shards_add_up() -> None:
    first, second = sample_survey(), sample_survey(first_sample=16)
    both = (first | second).histogram("entropy", 2, 1)
    assert first.histogram("entropy", 2, 1).merge(second.histogram("entropy", 2, 1)) == both
    assert both.counts.sum() == 32


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        (("entropi", 0, 0), "Did you mean 'entropy'?"),
        (("entropy", 9, 0), "'entropy' was not measured at block 9: it is at blocks 0-3."),
        (("entropy", 0, 3), "'entropy' has numbers for 3 heads: choose one with head=, counted from 0."),
        (("entropy", 0, None), "'entropy' has numbers for 3 heads"),
        (("token_cosine", 0, 1), "leave head= out"),
    ],
)
def test_histogram_refuses_in_one_sentence(place: tuple[str, int, int | None], sentence: str) -> None:
    with pytest.raises(RefusalError) as caught:
        sample_survey().histogram(*place)
    assert sentence in str(caught.value)


def test_merging_with_other_types_is_an_error() -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        sample_survey() | 3
