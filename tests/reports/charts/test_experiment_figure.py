"""Figures of experiments: dashed references can be compared with the other lines."""

from __future__ import annotations

from typing import Any

import pytest

from attnscope.core.experiment import Figure, Point
from attnscope.reports.experiment_figure import experiment_figure
from attnscope.reports.theme import power_axis, round_below, tick_labels


def figure(low: float, panels: tuple[str, ...] = ("",), *, dashed: bool = True, twin: bool = True) -> Figure:
    """Return a figure with our line from 0.6 down to `low`, and a reference close to it."""
    rows: list[Point] = []
    for panel in panels:
        rows += [Point(x, y, "ours", panel) for x, y in enumerate((0.6, 0.5, low))]
        if dashed:
            name = "ours" if twin else "theirs"
            rows += [Point(x, y, name, panel, dashed=True) for x, y in enumerate((0.6, 0.4))]
    return Figure("f", "t", "c", "depth", "residual", tuple(rows), log=True)


def panels_of(chart: dict[str, Any]) -> list[dict[str, Any]]:
    inner = chart.get("concat", [])
    return [one for part in inner for one in panels_of(part)] if inner else [chart]


def scale_of(panel: dict[str, Any]) -> str:
    return str(panel["layer"][1]["encoding"]["y"]["scale"].get("type", "linear"))


@pytest.mark.parametrize("names", [("",), ("BERT", "Albert")])
def test_a_long_logarithmic_axis_with_dashed_lines_has_a_linear_one_beside_it(names: tuple[str, ...]) -> None:
    found = panels_of(experiment_figure(figure(1e-14, names)).to_dict())
    assert [scale_of(panel) for panel in found] == ["log"] * len(names) + ["linear"] * len(names)
    assert found[-1]["layer"][1]["encoding"]["y"]["title"] == "residual, linear"


def test_one_axis_is_enough_where_nothing_is_dashed_or_all_can_be_seen() -> None:
    assert len(panels_of(experiment_figure(figure(1e-14, dashed=False)).to_dict())) == 1
    assert len(panels_of(experiment_figure(figure(0.05)).to_dict())) == 1


def test_dashed_lines_lie_on_top_and_have_marks_where_they_may_cover_their_own_line() -> None:
    marks = [layer["mark"] for layer in panels_of(experiment_figure(figure(0.05)).to_dict())[0]["layer"]]
    assert [mark["type"] for mark in marks] == ["area", "line", "circle", "line", "point"]
    assert marks[3]["strokeDash"]
    assert marks[3]["strokeWidth"] >= 2
    alone = panels_of(experiment_figure(figure(0.05, twin=False)).to_dict())[0]["layer"]
    assert [layer["mark"]["type"] for layer in alone] == ["area", "line", "circle", "line"]


def test_a_dashed_line_has_a_band_of_its_own() -> None:
    """A common band would jump between the two lines."""
    rows = tuple(Point(x, y, "gain 1", "", y - 1, y + 1, y > 5) for x in (1, 2) for y in (1.0, 9.0))
    (panel,) = panels_of(experiment_figure(Figure("f", "t", "c", "x", "y", rows)).to_dict())
    bands = [layer["encoding"] for layer in panel["layer"] if layer["mark"]["type"] == "area"]
    assert [band["detail"]["field"] for band in bands] == ["dashed"]


@pytest.mark.parametrize(("width", "columns"), [(326, 1), (600, 2), (1080, 3)])
def test_as_many_panels_stand_side_by_side_as_there_is_room_for(width: int, columns: int) -> None:
    chart = experiment_figure(figure(0.05, ("a", "b", "c"), dashed=False), title=False, width=width).to_dict()
    assert chart["columns"] == columns
    assert columns * chart["concat"][0]["width"] < width


def test_points_say_what_they_are() -> None:
    row = Point(3, 0.5, "ours", "BERT", 0.4, 0.6)
    chart = experiment_figure(Figure("f", "t", "c", "depth", "residual", (row,))).to_dict()
    (rows,) = chart["datasets"].values()
    assert [one["label"] for one in rows] == ["BERT, ours, depth 3: 0.5 (0.4 to 0.6)"]


@pytest.mark.parametrize(
    ("numbers", "domain"), [((0.4, -0.5), [-0.5, 0.4]), ((-0.2, -0.5), [-0.5, 0.0]), ((0.2, 0.5), [0.0, 0.5])]
)
def test_bars_begin_at_zero_whatever_their_sign(numbers: tuple[float, ...], domain: list[float]) -> None:
    rows = tuple(Point(name, y, "ours", "", y, y) for name, y in zip("ab", numbers, strict=True))
    chart = experiment_figure(Figure("f", "t", "c", "method", "gap", rows, kind="bars")).to_dict()
    bars = panels_of(chart)[0]["layer"][0]
    assert bars["transform"] == [{"as": "floor", "calculate": "0.0"}]
    assert bars["encoding"]["y"]["scale"]["domain"] == domain


def test_axes_are_labelled_as_their_values_need() -> None:
    assert tick_labels([0.0, 0.5, -2.0]) == tick_labels([0.0]) == tick_labels([]) == {}
    assert "~e" in tick_labels([0.0, -2e-4])["labelExpr"]
    assert power_axis(1e-4, 10.0)["values"] == pytest.approx([1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0])
    assert len(power_axis(1e-20, 1.0)["values"]) <= 8
    assert power_axis(0.09, 1.1)["values"] == [0.1, 0.2, 0.5, 1.0]
    assert power_axis(2.0, 8.0)["values"] == [2.0, 5.0]
    assert len(power_axis(0.005, 1.2)["values"]) == 8  # few powers of ten: 1, 2 and 5 of each
    assert "values" not in power_axis(2.1, 2.9)
    assert round_below(0.37, 0.5) == 0.2
    assert round_below(0.37, 5.0) == 0.1
    assert round_below(0.1, 5.0) == pytest.approx(0.1)
