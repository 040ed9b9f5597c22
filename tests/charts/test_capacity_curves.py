"""Width against n and against k: what was measured as lines, what is proved dashed, both axes logarithmic."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from attnscope.charts.capacity_curves import capacity_curves
from attnscope.charts.export import save
from attnscope.charts.theme import specification
from attnscope.core.errors import RefusalError

NEEDS = [
    {"against": against, "at": at, "name": name, "d": d * at}
    for against in ("n", "k")
    for at in (2, 4, 8)
    for name, d in (("joint", 2), ("frame", 5))
]
FLOORS = [{"against": against, "at": at, "name": "all", "d": at} for against in ("n", "k") for at in (2, 4, 8)]


def test_two_panels_share_one_width_axis() -> None:
    document = specification(capacity_curves(NEEDS, FLOORS, title="t", subtitle=("s",), fixed={"n": "k = 3"}))
    first, second = document["hconcat"]
    assert first["layer"][0]["encoding"]["x"]["title"] == "tokens n, k = 3"
    assert second["layer"][0]["encoding"]["x"]["title"] == "keys of a row k"
    scales = [panel["layer"][i]["encoding"]["y"]["scale"] for panel in (first, second) for i in range(3)]
    assert all(scale == scales[0] for scale in scales)
    assert scales[0]["type"] == "log"
    low, high = scales[0]["domain"]
    assert low < 2
    assert high > 40


def test_bounds_are_dashed_and_constructions_keep_their_order() -> None:
    bounds, lines, dots = specification(capacity_curves(NEEDS, FLOORS, title="t", fixed={}))["hconcat"][0]["layer"]
    assert bounds["encoding"]["strokeDash"]["scale"]["domain"] == ["all"]
    assert lines["encoding"]["color"]["scale"]["domain"] == ["joint", "frame"]
    sizes = dots["encoding"]["size"]["scale"]["range"]
    assert sizes == sorted(sizes, reverse=True)


def test_without_bounds_and_with_one_panel() -> None:
    document = specification(capacity_curves([row for row in NEEDS if row["against"] == "n"], [], title="t", fixed={}))
    assert len(document["hconcat"]) == 1
    assert len(document["hconcat"][0]["layer"]) == 2


def test_nothing_measured_is_refused() -> None:
    with pytest.raises(RefusalError, match="--budget"):
        capacity_curves([], FLOORS, title="t", fixed={})


def test_drawn(tmp_path: Path) -> None:
    svg = save(capacity_curves(NEEDS, FLOORS, title="Widths", fixed={}), tmp_path / "c.svg").read_text()
    assert "Widths" in svg
    assert "joint" in svg


def test_constructions_that_need_the_same_are_rings_around_each_other(tmp_path: Path) -> None:
    needs = [{"against": "n", "at": at, "name": name, "d": 4} for name in ("joint", "margin", "frame") for at in (2, 4)]
    svg = save(capacity_curves(needs, [], title="t", fixed={}), tmp_path / "c.svg").read_text()
    radii = [float(r) for r in re.findall(r'aria-roledescription="circle" transform="[^"]*" d="M([\d.]+),', svg)]
    joint, margin, frame = radii[::2]
    assert radii[1::2] == [joint, margin, frame]
    assert joint > margin + 1 > frame + 2
