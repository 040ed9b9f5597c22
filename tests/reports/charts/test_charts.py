"""Charts are data: these tests read specifications, which Altair checks against Vega-Lite's schema."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from attnscope.commands.compare.chart import comparison_profile
from attnscope.commands.scan.chart import MOST_PORTRAITS, TICKS, HeadPlace, gallery, head_portrait, portrait_rows
from attnscope.commands.scan.diagnose import diagnose
from attnscope.core.errors import RefusalError
from attnscope.reports.survey_charts import depth_profile, head_grid
from attnscope.reports.theme import THEMES, configuration, specification
from tests.reports.charts.sample_model import CARDS, encoder_decoder, made_survey, observations


def layers_of(chart: Any) -> list[dict[str, Any]]:
    layers: list[dict[str, Any]] = specification(chart)["layer"]
    return layers


def rows_of(chart: Any, layer: int = 0) -> list[dict[str, Any]]:
    document = specification(chart)
    name = document["layer"][layer].get("data", document.get("data"))["name"]
    rows: list[dict[str, Any]] = document["datasets"][name]
    return rows


def marks(chart: Any) -> list[str]:
    return [layer["mark"]["type"] for layer in layers_of(chart)]


def test_profile_has_a_band_a_line_and_readings() -> None:
    chart = depth_profile(made_survey(observations(6, 2)).table(), CARDS["effective_rank"])
    assert marks(chart) == ["area", "line", "circle"]
    band = layers_of(chart)[0]["encoding"]
    assert (band["y"]["field"], band["y2"]["field"], band["x"]["field"]) == ("low", "high", "depth")
    assert band["y"]["title"] == "Effective rank (dimensions)"
    assert len(rows_of(chart)) == 7
    assert layers_of(chart)[2]["encoding"]["description"]["field"] == "label"
    assert specification(chart)["title"]["text"] == "Effective rank"


def test_profile_shows_the_alarm_only_in_sight() -> None:
    table = made_survey(observations(6, 2)).table()
    assert "rule" in marks(depth_profile(table, CARDS["relative_residual"]))
    early = table[table["layer"] < 2]
    assert "rule" not in marks(depth_profile(early, CARDS["spike"]))


def test_spike_is_drawn_on_a_log_axis_with_powers_of_ten() -> None:
    chart = depth_profile(made_survey(observations(10, 2)).table(), CARDS["spike"])
    y = layers_of(chart)[0]["encoding"]["y"]
    assert y["scale"]["type"] == "log"
    assert y["axis"]["values"] == [100.0, 1000.0, 10000.0]
    assert {row["part"] for row in rows_of(chart)} == {
        "largest activation",
        "second channel",
        "third channel",
    }
    assert layers_of(chart)[1]["encoding"]["color"]["field"] == "part"


def test_profile_crosses_out_layers_with_nan() -> None:
    chart = depth_profile(made_survey(observations(4, 3, broken=((1, 0),))).table(), CARDS["entropy"])
    assert marks(chart)[-1] == "text"
    assert [row["depth"] for row in rows_of(chart) if row["broken"]] == [1]


def test_profile_of_one_layer_and_of_each_stack() -> None:
    assert len(rows_of(depth_profile(made_survey(observations(1, 1)).table(), CARDS["entropy"]))) == 1
    table = encoder_decoder().table()
    assert len(rows_of(depth_profile(table, CARDS["entropy"], stack="encoder"))) == 4
    assert len(rows_of(depth_profile(table, CARDS["entropy"], stack="decoder", site="cross"))) == 5
    with pytest.raises(RefusalError, match="'entropy' at 'cross' in stack 'encoder'"):
        depth_profile(table, CARDS["entropy"], stack="encoder", site="cross")


def test_grid_has_a_square_per_head_and_a_fixed_domain() -> None:
    chart = head_grid(made_survey(observations(6, 4)).table(), CARDS["sink_mass"])
    square = layers_of(chart)[0]
    assert marks(chart) == ["rect"]
    assert (square["encoding"]["x"]["field"], square["encoding"]["y"]["field"]) == ("layer", "head")
    assert square["encoding"]["color"]["scale"]["domain"] == [0.0, 1.0]
    assert [t["field"] for t in square["encoding"]["tooltip"]][:3] == ["layer", "head", "mean"]
    assert len(rows_of(chart)) == 24


def test_grid_crosses_out_nan() -> None:
    chart = head_grid(made_survey(observations(4, 3, broken=((1, 0),))).table(), CARDS["sink_mass"])
    assert marks(chart) == ["rect", "rect", "text"]
    assert layers_of(chart)[0]["transform"] == [{"filter": "!datum.broken"}]
    broken = [row for row in rows_of(chart) if row["broken"]]
    assert [(row["layer"], row["head"], row["mean"]) for row in broken] == [(1, 0, None)]


def test_grid_of_a_stream_measure_is_refused() -> None:
    with pytest.raises(RefusalError, match="no number per head"):
        head_grid(made_survey(observations(2, 2)).table(), CARDS["effective_rank"])


def test_portrait_places_a_head_among_the_others() -> None:
    table = made_survey(observations(5, 4)).table()
    rows = portrait_rows(table, CARDS, HeadPlace("decoder", "self", layer=3, head=2))
    sink = rows[rows["title"] == "Sink mass"]
    own = sink[sink["own"]].iloc[0]
    means = table[(table["measure"] == "sink_mass")]["mean"].to_numpy()
    assert own["below"] == (means < own["value"]).mean()
    assert own["place"] == pytest.approx((own["value"] - means.min()) / (means.max() - means.min()), abs=1e-12)
    assert (~sink["own"]).sum() == 20
    assert marks(head_portrait(table, CARDS, HeadPlace("decoder", "self", layer=3, head=2))) == [
        "tick",
        "circle",
        "text",
    ]
    with pytest.raises(RefusalError, match="no head 9 in block 3"):
        portrait_rows(table, CARDS, HeadPlace("decoder", "self", layer=3, head=9))


def test_portrait_draws_quantiles_of_many_heads() -> None:
    table = made_survey(observations(20, 20, 2, only=("entropy",))).table()
    rows = portrait_rows(table, CARDS, HeadPlace("decoder", "self", layer=0, head=0))
    assert (~rows["own"]).sum() == TICKS


def test_comparison_draws_two_lines_apart_without_colour() -> None:
    first, second = made_survey(observations(4, 2)).table(), made_survey(observations(6, 2, tilt=0.2)).table()
    chart = comparison_profile([first, second], CARDS["relative_residual"], names=("base", "tilted"))
    rows = rows_of(chart)
    assert [sum(r["survey"] == n for r in rows) for n in ("base", "tilted")] == [5, 7]
    line = layers_of(chart)[1]["encoding"]
    assert line["color"]["field"] == line["strokeDash"]["field"] == "survey"
    growth = replace(CARDS["norm_growth"], of_block=True)  # what a block makes of the stream is said of the block
    axis = layers_of(comparison_profile([first, second], growth, names=("base", "tilted")))[1]["encoding"]["x"]
    assert (axis["title"], line["x"]["title"]) == ("block", "entering block")
    same = comparison_profile([first, second], CARDS["relative_residual"], names=("x", "x"))
    assert {r["survey"] for r in rows_of(same)} == {"x (first)", "x (second)"}


def test_every_chart_of_a_gallery_is_valid() -> None:
    charts = dict(gallery(made_survey(observations(3, 2, broken=((1, 1),)))))
    assert {
        "decoder-stream-spike",
        "decoder-self-sink_mass-heads",
        "decoder-self-qk_spectrum-eta-heads",
    } <= set(charts)
    assert all(specification(chart)["layer"] for chart in charts.values())


def test_a_gallery_has_portraits_of_heads_that_findings_name() -> None:
    survey = made_survey(observations(8, 6, broken=((1, 1),)))
    findings = diagnose(survey)
    named = {f"decoder-self-block-{layer}-head-{head}" for f in findings for layer, head in f.heads}
    portraits = {name: chart for name, chart in gallery(survey) if "-block-" in name}
    assert len(named) > len(portraits) == MOST_PORTRAITS
    assert set(portraits) <= named
    assert "decoder-self-block-1-head-1" in portraits  # this finding is about NaN
    first = next(f for f in findings if f.kind == "sink").heads[0]
    assert specification(portraits[f"decoder-self-block-{first[0]}-head-{first[1]}"])["title"]["text"] == (
        f"Block {first[0]}, head {first[1]}"
    )
    assert not [name for name, _ in gallery(survey, ()) if "-block-" in name]


@pytest.mark.parametrize("theme", THEMES)
def test_a_theme_is_a_valid_configuration(theme: str) -> None:
    chart = depth_profile(made_survey(observations(2, 2)).table(), CARDS["entropy"])
    document = chart.configure(**configuration(theme)).to_dict()  # checked against Vega-Lite's schema
    assert specification(chart, theme)["config"] == configuration(theme)
    assert document["config"]["range"] == configuration(theme)["range"]
    assert document["config"]["background"] == configuration(theme)["background"]
    assert "config" not in chart.to_dict() or chart.to_dict()["config"] != document["config"]


def test_an_unknown_theme_is_refused() -> None:
    with pytest.raises(RefusalError, match="Did you mean 'dark'"):
        configuration("darc")
