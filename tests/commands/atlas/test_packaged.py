"""The atlas in the package: real models that were shown to be loaded right, none of which is called wrong."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

import attnscope
from attnscope.commands.atlas.record import Entry
from attnscope.core.errors import RefusalError

ATLAS = attnscope.atlas()
DOCS = Path(__file__).parents[3] / "docs"
CHECKED = json.loads((Path(__file__).parents[3] / "tools/atlas/loaded_right.json").read_text("utf-8"))


def test_it_is_small_and_has_many_families() -> None:
    file = resources.files("attnscope.commands.atlas").joinpath("atlas.json.gz")
    assert len(file.read_bytes()) <= 3_000_000
    assert len(ATLAS.entries) >= 38
    assert len(ATLAS.families) >= 16
    assert len({entry.hash for entry in ATLAS.entries}) == len(ATLAS.entries)


@pytest.mark.parametrize("entry", ATLAS.entries, ids=lambda entry: entry.name)
def test_every_model_passed_its_check_and_names_its_source(entry: Entry) -> None:
    assert CHECKED[entry.name]["passes"]
    assert CHECKED[entry.name]["parameters"] == entry.parameters
    assert "==" in entry.source or entry.source.startswith("npm:")
    assert entry.licence
    assert math.isfinite(entry.inside) or len(entry.stacks) == 0


def test_models_that_predict_tokens_do_so_better_than_token_frequencies() -> None:
    known = [entry for entry in ATLAS.entries if math.isfinite(entry.loss) and math.isfinite(entry.unigram)]
    assert len(known) >= 8
    assert all(entry.loss < entry.unigram for entry in known)


def test_random_twins_do_not_attend_to_the_first_token() -> None:
    for entry in ATLAS.entries:
        assert entry.twin, entry.name
        grids = [stack.grid("sink_mass", "value", "self") for stack in entry.twin]
        assert all(np.median(grid.values) < 0.3 for grid in grids if grid is not None and len(grid.values)), entry.name


def test_numbers_on_pages_are_those_of_the_atlas() -> None:
    slopes = [
        max(float(np.abs(grid.values).max()) for grid in grids)
        for entry in ATLAS.entries
        if (grids := [g for s in entry.stacks for g in s.grids if g.measure == "slope" and len(g.values)])
    ]
    steep = sum(slope > attnscope.Thresholds().write_slope for slope in slopes)
    assert f"{steep} of {len(slopes)} models of the [atlas]" in (DOCS / "scan.md").read_text("utf-8")
    placed = [attnscope.place(replace(entry, stacks=entry.twin)) for entry in ATLAS.entries]
    usual = sum(twin.inside >= min(twin.others) for twin in placed)
    assert f"{usual} of {len(placed)} random twins" in (DOCS / "atlas.md").read_text("utf-8")


def test_an_unknown_model_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(RefusalError, match="Did you mean 'smollm2-135m'"):
        ATLAS["smollm2"]


def test_the_page_has_a_row_and_a_map_for_every_model(tmp_path: Path) -> None:
    page = attnscope.report(ATLAS, tmp_path / "atlas.html").read_text("utf-8")
    rows = page.partition('<table id="atlas"')[2].partition("</table>")[0]
    assert rows.count("<tr>") == len(ATLAS.entries) + 1
    assert rows.count("<svg") >= len(ATLAS.entries)
