from __future__ import annotations

import numpy as np
import pytest

from attnscope.core.errors import RefusalError
from attnscope.core.words import numeral
from attnscope.reports.rows import Panel, depth_rows, head_rows, panels
from tests.reports.charts.sample_model import CARDS, encoder_decoder, made_survey, observations

SINK = Panel("sink_mass", "decoder", "self")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.43125, "0.4313"),
        (12.5, "12.5"),
        (100.0, "100"),
        (-0.5, "-0.5"),
        (999.96, "1,000"),
        (20740.4, "20,740"),
        (1.2e-5, "1.2e-5"),
        (3.0e7, "3e7"),
        (float("nan"), "not a number"),
        (float("inf"), "infinite"),
        (float("-inf"), "minus infinity"),
    ],
)
def test_numerals(value: float, text: str) -> None:
    assert numeral(value) == text


def test_panels_list_streams_first_and_keep_the_order_of_stacks() -> None:
    survey = encoder_decoder()
    found = panels(survey.table(), survey.stacks)
    sites = [p.site for p in found]
    assert sites == sorted(sites, key=("stream", "self", "cross").index)
    assert [p.stack for p in found if p.measure == "entropy"] == ["encoder", "decoder", "decoder"]
    assert "middle" not in sites


def test_depth_rows_of_a_stream_are_the_survey_itself() -> None:
    survey = made_survey(observations(4, 3))
    table = survey.table()
    rows = depth_rows(table, CARDS["relative_residual"], Panel("relative_residual", "decoder", "stream"))
    own = table[table["measure"] == "relative_residual"]
    assert rows["depth"].tolist() == [0, 1, 2, 3, 4]
    assert rows["mean"].tolist() == own["mean"].tolist()
    assert rows["low"].tolist() == own["p10"].tolist()
    assert rows["label"].iloc[2].startswith("entering block 2: ")


def test_places_inside_a_block_stand_half_way() -> None:
    table = made_survey(observations(3, 2)).table()
    rows = depth_rows(table, CARDS["spike"], Panel("spike", "decoder", "stream"))
    first = rows[rows["part"] == "largest activation"]
    assert first["depth"].tolist() == [0, 0.5, 1, 1.5, 2, 2.5, 3]
    assert list(dict.fromkeys(rows["part"])) == ["largest activation", "second channel", "third channel"]
    assert "inside block 1, after attention" in first["label"].iloc[3]


def test_spread_of_attention_is_over_heads() -> None:
    table = made_survey(observations(2, 9)).table()
    rows = depth_rows(table, CARDS["sink_mass"], SINK)
    means = table[(table["measure"] == "sink_mass") & (table["layer"] == 1)]["mean"].to_numpy()
    assert rows["mean"].iloc[1] == pytest.approx(means.mean(), abs=1e-12)
    assert rows["low"].iloc[1] == pytest.approx(np.quantile(means, 0.1), abs=1e-12)
    assert rows["high"].iloc[1] == pytest.approx(np.quantile(means, 0.9), abs=1e-12)


def test_a_log_axis_rests_zeros_on_a_floor() -> None:
    zero = [o._replace(values=o.values * (o.layer > 1)) for o in observations(3, 2, only=("spike",))]
    rows = depth_rows(made_survey(zero).table(), CARDS["spike"], Panel("spike", "decoder", "stream"))
    assert (rows[["mean", "low", "high"]].to_numpy() > 0).all()


def test_nan_is_marked_and_not_averaged() -> None:
    table = made_survey(observations(4, 3, broken=((1, 0), (2, 1)))).table()
    heads = head_rows(table, SINK, "value")
    assert heads[heads["broken"]][["layer", "head"]].to_numpy().tolist() == [[1, 0], [2, 1]]
    assert heads.set_index(["layer", "head"])["mean"].isna().to_numpy().nonzero()[0].tolist() == [3]
    depth = depth_rows(table, CARDS["sink_mass"], SINK)
    assert depth["broken"].tolist() == [False, True, True, False]
    assert np.isfinite(depth["mean"]).all()


def test_a_panel_that_is_not_there_is_refused() -> None:
    with pytest.raises(RefusalError, match="no measure 'entropy' at 'cross'"):
        head_rows(made_survey(observations(2, 2)).table(), Panel("entropy", "decoder", "cross"), "value")
