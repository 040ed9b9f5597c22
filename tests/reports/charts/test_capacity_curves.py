"""Width against n and k on logarithmic axes: measurements as lines, proved bounds dashed."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from attnscope.commands.capacity.chart import capacity_curves, floor_rows, need_rows
from attnscope.core.errors import RefusalError
from attnscope.reports.export import save
from attnscope.reports.theme import specification
from tests.reports.charts.sample_capacity import need, sample_capacity


def test_rows_leave_out_what_has_no_width() -> None:
    found = sample_capacity(against_k=False)
    rows = need_rows(replace(found, against_n=(need("joint", 4, 3, 8), need("frame", 4, 3, None))))
    assert rows == [{"against": "n", "at": 4, "name": "joint", "d": 8, "label": "joint, n = 4, k = 3: width 8"}]
    first, second = floor_rows(found)[:2]
    assert (first["at"], first["name"], first["d"]) == (2, "keys for all patterns", 2)
    assert (second["at"], second["name"], second["d"]) == (2, "most patterns", 1)
    assert second["label"] == "lower bound for most patterns, n = 2, k = 3: width 1"


def test_panels_stand_below_each_other_where_there_is_no_room() -> None:
    assert len(specification(capacity_curves(sample_capacity(), width=1080))["hconcat"]) == 2
    assert len(specification(capacity_curves(sample_capacity(), width=326))["vconcat"]) == 2


def test_two_panels_share_one_width_axis() -> None:
    document = specification(capacity_curves(sample_capacity(), title="t", subtitle=("s",)))
    first, second = document["hconcat"]
    assert first["layer"][0]["encoding"]["x"]["title"] == "tokens n, k = 3"
    assert second["layer"][0]["encoding"]["x"]["title"] == "keys of a row k, n = 64"
    scales = [panel["layer"][i]["encoding"]["y"]["scale"] for panel in (first, second) for i in range(3)]
    assert all(scale == scales[0] for scale in scales)
    assert scales[0]["type"] == "log"
    low, high = scales[0]["domain"]
    assert low < 2
    assert high > 40


def test_bounds_are_dashed_and_constructions_keep_their_order() -> None:
    bounds, lines, dots, _ = specification(capacity_curves(sample_capacity(), title="t"))["hconcat"][0]["layer"]
    assert bounds["encoding"]["strokeDash"]["scale"]["domain"] == ["keys for all patterns", "most patterns"]
    assert lines["encoding"]["color"]["scale"]["domain"] == ["joint", "frame"]
    sizes = dots["encoding"]["size"]["scale"]["range"]
    assert sizes == sorted(sizes, reverse=True)


def test_without_bounds_with_one_panel_and_without_a_title() -> None:
    document = specification(capacity_curves(sample_capacity(floors=False, against_k=False), title=""))
    assert len(document["hconcat"]) == 1
    assert len(document["hconcat"][0]["layer"]) == 2
    assert "title" not in document


def test_nothing_measured_is_refused() -> None:
    with pytest.raises(RefusalError, match="`budget=`"):
        capacity_curves(replace(sample_capacity(), against_n=(), against_k=()), title="t")


def test_drawn(tmp_path: Path) -> None:
    svg = save(capacity_curves(sample_capacity(), title="Widths"), tmp_path / "c.svg").read_text()
    assert "Widths" in svg
    assert "joint" in svg


def test_constructions_that_need_the_same_are_rings_around_each_other(tmp_path: Path) -> None:
    same = tuple(need(name, at, 3, 4) for name in ("joint", "margin", "frame") for at in (2, 4))
    found = replace(sample_capacity(floors=False), against_n=same, against_k=())
    svg = save(capacity_curves(found, title="t"), tmp_path / "c.svg").read_text()
    radii = [float(r) for r in re.findall(r'aria-roledescription="circle" transform="[^"]*" d="M([\d.]+),', svg)]
    joint, margin, frame = radii[::2]
    assert radii[1::2] == [joint, margin, frame]
    assert joint > margin + 1 > frame + 2
