"""README and docs name what there is, and nothing that is not there any more."""

from __future__ import annotations

import re

from attnscope.core.registry import experiments, findings, measures
from tests.docs.lists import ROOT, section, undocumented
from tools import measures_table, papers_page, widths_table


def test_everything_is_named_where_a_reader_looks_for_it() -> None:
    assert undocumented() == {}


def test_the_table_of_measures_is_the_catalog() -> None:
    table = measures_table.measures_table(measure.card for measure in measures().values())
    text = measures_table.PAGE.read_text("utf-8")
    assert measures_table.with_table(text, table) == text, "write it anew with `make tables`"


def test_widths_are_those_that_ship() -> None:
    assert widths_table.PAGE.read_text("utf-8") == widths_table.written(), "write it anew with `make tables`"
    one = {"method": "frame", "n": 64, "k": 1, "dtype": "float32"}
    assert "| 64 | 1 | 7 (1 seed) | not measured |" in widths_table.table([one | {"d": 7}])
    assert "| 64 | 1 | not reached | not measured |" in widths_table.table([one | {"d": None}] * 3)


def test_papers_stand_beside_their_numbers_and_none_is_gone() -> None:
    rows = re.findall(r"^\| `(\w+)` \(arXiv:([\d.]+)", papers_page.PAGE.read_text("utf-8"), re.M)
    assert {name for name, _ in rows} == set(experiments())
    for name, paper in rows:
        assert paper in {experiments()[name].paper, *(claim.paper for claim in experiments()[name].claims)}


def test_the_page_of_papers_is_what_the_tool_writes() -> None:
    """Cards as they are now: where an experiment has changed, its file and not the written card is asked."""
    every = [one.card for one in experiments().values()]
    assert papers_page.PAGE.read_text("utf-8") == papers_page.page(every), "write it anew with `make tables`"
    for name, words in papers_page._drawn().items():
        assert words.endswith(").")
        assert (papers_page.PICTURES / f"{name}.png").exists()


def test_every_experiment_says_what_to_do_with_it() -> None:
    silent = [name for name, one in experiments().items() if not one.advice.endswith(".")]
    assert not silent, "give them `advice=...`: a paragraph for someone who trains or changes models"


def test_contributing_shows_the_ladder_that_is_checked_and_every_leaf_room() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    settings = (ROOT / "pyproject.toml").read_text("utf-8")
    layers = re.search(r"layers = \[(.*?)\]", settings, re.S)
    assert layers
    rooms = [room for room in re.findall(r'"([^"]+)"', layers[1]) if room != "__main__"]
    shown = " ".join(section(text, "Rooms, and which way imports point").split())
    assert " > ".join(rooms) in shown
    for decorator in ("@measure", "@variant", "@construction", "@explanation", "@experiment", "@finding"):
        assert decorator in text
    assert findings()
