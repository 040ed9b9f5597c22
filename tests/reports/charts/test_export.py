from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from attnscope.commands.scan.chart import write_gallery
from attnscope.core.errors import RefusalError
from attnscope.reports.export import save
from attnscope.reports.survey_charts import depth_profile
from tests.reports.charts.sample_model import CARDS, made_survey, observations


def chart() -> object:
    return depth_profile(made_survey(observations(3, 2)).table(), CARDS["relative_residual"])


def test_charts_are_saved_by_suffix(tmp_path: Path) -> None:
    assert json.loads(save(chart(), tmp_path / "a.json").read_text())["title"]["text"] == "Relative residual"
    svg = ElementTree.fromstring(save(chart(), tmp_path / "deep" / "a.svg", theme="dark").read_text())
    assert svg.tag == "{http://www.w3.org/2000/svg}svg"
    assert "Relative residual" in "".join(svg.itertext())
    assert save(chart(), tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    page = save(chart(), tmp_path / "a.html").read_text()
    assert 'src="http' not in page
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.html", "a.json", "a.png", "deep"]


def test_an_unknown_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusalError, match=r"\.png, \.svg, not as 'a\.bmp'"):
        save(chart(), tmp_path / "a.bmp")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RefusalError, match="cannot be created"):
        save(chart(), tmp_path / "file" / "a.json")


def test_text_in_a_survey_stays_text_in_a_drawing(tmp_path: Path) -> None:
    nasty = "<script>alert(1)</script>"
    survey = made_survey(observations(3, 2, stack=nasty, only=("entropy",)))
    svg = save(depth_profile(survey.table(), CARDS["entropy"]), tmp_path / "a.svg").read_text()
    assert "<script" not in svg
    assert nasty in "".join(ElementTree.fromstring(svg).itertext())


def test_a_portrait_of_a_head_without_a_number_can_be_drawn(tmp_path: Path) -> None:
    """Head 1 of 2 is broken in every sequence; a survey without any finite number has no strip at all."""
    for name, heads in (("one", 2), ("all", 1)):
        survey = made_survey(observations(1, heads, 4, broken=((0, 0),), only=("entropy",)))
        files = write_gallery(survey, tmp_path / name)
        (svg,) = [f for f in files if f.name == "decoder-self-block-0-head-0.svg"]
        words = "".join(ElementTree.fromstring(svg.read_text()).itertext())
        assert "Block 0, head 0" in words
        assert ("not a number nats" in words) == (name == "one")


def test_a_gallery_stays_in_its_folder(tmp_path: Path) -> None:
    survey = made_survey(observations(2, 2, 2, stack="../up", only=("entropy",)))
    files = write_gallery(survey, tmp_path / "charts")
    assert len(files) == 6
    assert {f.parent for f in files} == {tmp_path / "charts"}
    assert {f.suffix for f in files} == {".json", ".svg", ".png"}


def test_texts_in_a_chart_stay_texts_in_a_page(tmp_path: Path) -> None:
    import altair as alt
    import pandas as pd

    told = "</script><script>document.title = 'taken'</script>"
    drawn = alt.Chart(pd.DataFrame({"x": [1.0], "text": [told]})).mark_text().encode(x="x:Q", text="text:N")
    page = save(drawn, tmp_path / "a.html").read_text()
    assert told not in page
    assert "\\u003c/script>\\u003cscript>document.title" in page
