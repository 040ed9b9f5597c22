"""A figure that is a table shows every number, a dash for a missing one, and fits a phone."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from attnscope.core.experiment import Figure, Point
from attnscope.reports.experiment_figure import BREAK, experiment_figure
from attnscope.reports.export import save

ROWS = (
    Point("softmax", 2.5, "loss", low=2.4, high=2.6),
    Point("softmax", 0.25, "sink rate, book"),
    Point("compressed", 3.0, "loss"),
    Point("compressed", math.nan, "sink rate, book"),
)
FIGURE = Figure("table", "A table", "A caption.", "", "", ROWS, "table")


def cells(width: int = 1000) -> list[dict[str, str]]:
    chart = experiment_figure(FIGURE, width=width).to_dict()
    (rows,) = chart["datasets"].values()
    return list(rows)


def test_every_number_has_a_cell_and_a_missing_one_is_a_dash() -> None:
    assert [one["text"] for one in cells()] == ["2.5", "0.25", "3", "–"]
    assert cells()[0]["label"] == "softmax, loss: 2.5 (2.4 to 2.6)"
    assert cells()[3]["label"] == "compressed, sink rate, book: no number"


@pytest.mark.parametrize("width", [300, 1000])
def test_it_is_no_wider_than_asked(width: int) -> None:
    chart = experiment_figure(FIGURE, width=width).to_dict()
    assert chart["width"] < width
    assert chart["height"] == 2 * 22


def test_headings_are_broken_where_columns_are_narrow() -> None:
    many = tuple(Point("a row", 1.0, f"sink rate of {n}") for n in range(8))
    narrow = experiment_figure(Figure("t", "t", "c", "", "", many, "table"), width=500).to_dict()
    (rows,) = narrow["datasets"].values()
    assert rows[0]["column"].split(BREAK) == ["sink", "rate of", "0"]


def test_it_can_be_drawn(tmp_path: Path) -> None:
    save(experiment_figure(FIGURE), tmp_path / "table.svg")
    drawn = (tmp_path / "table.svg").read_text("utf-8")
    assert ">compressed</text>" in drawn
    assert ">0.25</text>" in drawn
