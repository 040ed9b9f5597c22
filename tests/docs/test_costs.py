"""The tables of costs equal bench/results.json; `python -m bench.cost_tables` writes them."""

from __future__ import annotations

import json

import pytest

from bench.cost_tables import ROOT, pages, with_costs
from tools.marked import marks, put_between_marks

RESULTS = json.loads((ROOT / "bench" / "results.json").read_text(encoding="utf-8"))


def test_cost_tables_equal_the_measurements() -> None:
    for page, text in pages(RESULTS).items():
        said = page.read_text(encoding="utf-8")
        assert said == with_costs(said, text), f"{page.name} is older than the results: python -m bench.cost_tables"


def test_other_measurements_change_the_page() -> None:
    changed = {**RESULTS, "rows": [row | {"time_ratio": row["time_ratio"] + 1} for row in RESULTS["rows"]]}
    for page, text in pages(changed).items():
        said = page.read_text(encoding="utf-8")
        assert with_costs(said, text) != said


def test_text_around_the_table_is_not_changed() -> None:
    begin, end = marks("costs", "a script")
    page = put_between_marks(f"before\n{begin}\nold\n{end}\nafter\n", "costs", "a script", "new")
    assert page == f"before\n{begin}\n\nnew\n\n{end}\nafter\n"


@pytest.mark.parametrize("kept", [0, 1])
def test_a_page_without_its_marks_is_refused(kept: int) -> None:
    with pytest.raises(SystemExit, match="lost its marks"):
        put_between_marks(f"before {marks('costs', 'a script')[kept]} after", "costs", "a script", "new")
