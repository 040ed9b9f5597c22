"""The record of a capacity: round trips, refusals, tables and pages, all without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attnscope.commands.capacity.record import Capacity
from attnscope.commands.capacity.words import curve_tables, need_rows, seed_words, verdict
from attnscope.commands.records import load
from attnscope.core.errors import RefusalError
from attnscope.reports.record import ask
from tests.reports.charts.sample_capacity import need, sample_capacity


def test_loaded_record_equals_saved_record(tmp_path: Path) -> None:
    found = sample_capacity()
    path = found.save(tmp_path / "capacity.json")
    assert Capacity.load(path) == load(tmp_path) == found
    assert json.loads(path.read_text())["format"] == "attnscope-capacity"


def test_output_of_json_can_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "kept.json").write_text(json.dumps(sample_capacity().to_json() | {"chart": None}))
    assert Capacity.load(tmp_path / "kept.json") == sample_capacity()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"n": "8"}, "n: a whole number is needed, not text"),
        ({"n": None}, "n: a whole number is needed, not null"),
        ({"seeds": [0.5]}, r"seeds\[0\]: a whole number"),
        ({"needs": [{"method": "joint"}]}, "needs.*missing"),
        ({"floors": [[1, 2]]}, "floors"),
        ({"bounds": []}, "bounds: universal and typical"),
        ({"universal_lower_bound": 7}, "universal_lower_bound: 7 is stored, and 6 follows"),
        ({"lower_bound": 7}, "lower_bound: 7 is stored"),
        ({"lower_bound_reason": ""}, "lower_bound_reason: '' is stored"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_contradictions_are_refused_by_name(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    (tmp_path / "capacity.json").write_text(json.dumps(sample_capacity().to_json() | change))
    with pytest.raises(RefusalError, match=rf"damaged \(.*{says}"):
        load(tmp_path / "capacity.json")


def test_widths_without_seeds_and_other_versions_are_refused(tmp_path: Path) -> None:
    document = sample_capacity().to_json()
    document["needs"][0]["widths"] = []
    (tmp_path / "capacity.json").write_text(json.dumps(document))
    with pytest.raises(RefusalError, match=r"needs\[0\].seeds: a list as long as `widths` says is needed"):
        load(tmp_path)
    (tmp_path / "capacity.json").write_text(json.dumps(document | {"version": 7}))
    with pytest.raises(RefusalError, match="of version 7"):
        load(tmp_path)


def test_the_table_has_every_place_once() -> None:
    found = sample_capacity()
    table = replace(found, against_n=(*found.against_n, found.needs[0])).table()
    assert list(table["method"][:3]) == ["joint", "frame", "margin"]
    assert len(table) == 3 + 6 + 6
    assert table["d"].isna().sum() == 2
    assert table["seeds"][2] == 0


def test_sentences_and_lines() -> None:
    record = sample_capacity()
    sentences = record.sentences()
    assert sentences[0] == (
        "Width 4 is enough to attend to one pattern of 3 of 8 tokens (joint); keys that serve every such pattern need "
        "at least 6."
    )
    assert sentences[1:] == (
        "The theorem of arXiv:2106.03764 asks for 38,809,393, by formula: far above what is needed.",
        "Not measured in the time given: margin.",
    )
    missed = replace(record, needs=record.needs[1:2])
    assert missed.sentences()[0].startswith("No construction attends to 3 of 8 tokens with the accuracy that was asked")
    left = replace(record, needs=record.needs[2:])
    nothing = left.sentences()
    assert nothing[0].startswith("No width was measured for 3 of 8 tokens in the time given (--budget allows more);")
    assert len(nothing) == 2
    assert [verdict(capacity).level for capacity in (record, missed, left)] == ["calm", "warning", "note"]
    assert verdict(record).sentence == sentences[0]
    assert [line[:2] for line in need_rows(record)] == [
        ("joint", "4"),
        ("frame", "none"),
        ("margin", "–"),
        ("the theorem", "38,809,393"),
    ]
    assert seed_words(record) == "seed 0"
    assert seed_words(replace(record, seeds=(0, 1))) == "some of the seeds 0, 1"


def test_curves_as_numbers() -> None:
    found = sample_capacity()
    found = replace(found, against_n=(*found.against_n[:5], need("frame", 8, 3, None)))
    first, second = curve_tables(found)
    assert (first.caption, first.heading) == ("Width against tokens n, k = 3", ("construction", "2", "4", "8"))
    assert first.rows == (
        ("joint", "4", "8", "16"),
        ("frame", "10", "20", "none"),
        ("bound: keys for all patterns", "2", "4", "8"),
        ("bound: most patterns", "1", "1", "1"),
    )
    assert second.caption == "Width against keys of a row k, n = 64"
    assert curve_tables(replace(found, against_n=(), against_k=())) == ()


def page_of(found: Capacity) -> str:
    page: str = ask(found, "render")
    return page


def test_the_page_says_it_all_and_escapes() -> None:
    found = sample_capacity()
    page = page_of(replace(found, needs=(*found.needs, need("<i>new</i>", 8, 3, 5))))
    for words in ("Width 4 is enough", "38,809,393", "J. Radon", "Width against tokens n, k = 3", "<svg", "17.25"):
        assert words in page
    assert "<i>new</i>" not in page
    assert page.count("<script") == 2  # specifications as data, and the page's own
    assert page_of(found) == page_of(found)
    without = page_of(replace(found, against_n=(), against_k=()))
    assert 'href="#curves"' not in without
    assert "<figure" not in without
    assert "<i>" not in replace(found, needs=(need("<i>new</i>", 8, 3, 5),))._repr_html_()


def test_reading_and_drawing_need_no_torch(tmp_path: Path) -> None:
    path = sample_capacity().save(tmp_path / "capacity.json")
    code = f"""
import sys
from attnscope.commands.records import load
from attnscope.reports.terminal import print_record
found = load({str(path)!r})
found.write_page({str(tmp_path / "capacity.html")!r})
found.chart(), found.sentences(), found.table(), found._repr_html_(), repr(found)
print_record(found)
assert "torch" not in sys.modules, "torch"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Width 4 is enough to attend to one pattern" in done.stdout
