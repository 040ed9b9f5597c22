"""The record of paths: files survive a round trip, and wrong fields are refused by name."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnscope.commands.paths.record import PathReport
from attnscope.commands.records import load
from attnscope.core.decoding import FieldError
from attnscope.core.errors import RefusalError
from attnscope.reports.record import Record
from tests.reports.sample_paths import sample_paths

# Documents, not records: records are checked by beartype, which looks at random elements, and hypothesis forbids
# randomness of others while it draws.
FINITE = st.floats(-1e100, 1e100)  # their sums and means are finite too
SIZES, SHARES = st.floats(0, 1e100), st.floats(0, 1)
WORDS = st.text(max_size=6)
PREDICTIONS = st.fixed_dictionaries(
    {
        "value": FINITE,
        "predicted": st.none() | WORDS,
        "probability": st.none() | SHARES,
        "target_probability": st.none() | SHARES,
        "loss": st.none() | SIZES,
        "distance": SIZES,
    }
)
GOALS = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["logit", "difference", "residual_norm", "stream_norm"]),
        "word": st.none() | WORDS,
        "other": st.none() | WORDS,
        "where": WORDS,
    }
)
MATRICES = st.lists(st.lists(FINITE, max_size=2), max_size=2)
PLAYERS = st.fixed_dictionaries({"heads": MATRICES, "mlps": MATRICES, "nothing": FINITE, "everything": FINITE})
SAMPLE = sample_paths().to_json()


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    lengths, layers, heads = (draw(st.integers(1, 3)) for _ in range(3))

    def nested(*sizes: int) -> Any:
        return draw(FINITE) if not sizes else [nested(*sizes[1:]) for _ in range(sizes[0])]

    rows: list[dict[str, Any]] = [
        {
            "length": length,
            "stream": draw(FINITE),
            "constants": draw(FINITE),
            "paths": draw(st.integers(0, 10**60)),
            **{name: draw(st.none() | SIZES) for name in ("residual", "residual_share", "energy", "energy_error")},
            "up_to": draw(PREDICTIONS),
            "without": draw(PREDICTIONS),
        }
        for length in range(lengths)
    ]
    tokens = draw(st.lists(WORDS, min_size=1, max_size=3))
    places, total = st.integers(0, len(tokens) - 1), math.fsum(row["stream"] + row["constants"] for row in rows)
    head = st.tuples(st.integers(0, layers - 1), st.integers(0, heads - 1)).map(list)
    chains = st.fixed_dictionaries(
        {
            "contribution": FINITE,
            "heads": st.lists(head, max_size=3),
            "position": places,
            "token": WORDS,
            "of_token": FINITE,
        }
    )
    drawn = {
        "model": draw(WORDS),
        "tokens": tokens,
        "position": draw(st.none() | places),
        "value": draw(FINITE),
        "total": total,
        "lengths": rows,
        "whole_residual": draw(st.none() | SIZES),
        "head_lengths": nested(layers, heads, lengths),
        "head_values": nested(layers, heads),
        "edges": draw(st.sampled_from([None, [total]])),
        "players": draw(st.none() | PLAYERS),
        "top": draw(st.lists(chains, max_size=3)),
        "top_exact": draw(st.booleans()),
        "notes": draw(st.lists(WORDS, max_size=2)),
        "goal": draw(st.none() | GOALS),
    }
    return {name: value for name, value in {**SAMPLE, **drawn}.items() if name != "difference"}


@settings(max_examples=60, deadline=None)
@given(documents())
def test_every_document_survives_a_round_trip(document: dict[str, Any]) -> None:
    report = PathReport.from_json(document)
    written = json.loads(json.dumps(report.to_json(), allow_nan=False))
    for row, own in zip(written["lengths"], report.lengths, strict=True):
        assert (row.pop("value"), row.pop("mean")) == (own.value, own.mean)
    assert written.pop("difference") == report.difference
    assert written == document
    assert PathReport.from_json(report.to_json()).to_json() == report.to_json()


def test_a_file_is_loaded_by_its_class_and_by_its_kind(tmp_path: Path) -> None:
    report = sample_paths(layers=40)
    assert report.lengths[-1].paths == 4**40  # more than 64 bits hold
    assert isinstance(report, Record)
    path = report.save(tmp_path / "paths.json")
    assert PathReport.load(path) == PathReport.load(tmp_path) == load(path) == report
    data = json.loads(path.read_text(encoding="utf-8"))
    assert (data["format"], data["version"]) == ("attnscope-paths", 1)
    assert data["lengths"][3]["value"] == report.lengths[3].value
    assert data["lengths"][3]["mean"] == report.lengths[3].mean
    assert data["difference"] == report.difference
    assert data["goal"] == {"kind": "logit", "word": " Rome", "other": None, "where": "after the last token"}


def test_nan_is_null_in_the_file_and_refused_when_read() -> None:
    sample = sample_paths()
    first = replace(sample.lengths[0], stream=math.nan)
    data = replace(sample, lengths=(first, *sample.lengths[1:])).to_json()
    assert data["lengths"][0]["stream"] is None
    assert data["lengths"][0]["value"] is None
    with pytest.raises(FieldError, match=r"lengths\[0\]\.stream: a finite number is needed, not null"):
        PathReport.from_json(json.loads(json.dumps(data, allow_nan=False)))


def test_a_file_without_goal_is_loaded(tmp_path: Path) -> None:
    data = sample_paths().to_json()
    del data["goal"]
    path = tmp_path / "paths.json"
    path.write_text(json.dumps(data))
    report = PathReport.load(path)
    assert report == replace(sample_paths(), goal=None)
    assert report.sentences()[1].startswith("The target, logit of ' Rome' after the last token, is ")
    assert "p(target) is the probability of logit of &#39; Rome&#39;" in report.write_page(
        tmp_path / "paths.html"
    ).read_text(encoding="utf-8")


def put(*way: str | int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(data: Any) -> None:
        for step in way[:-1]:
            data = data[step]
        data[way[-1]] = value

    return change


def drop(*way: str | int) -> Callable[[dict[str, Any]], None]:
    def change(data: Any) -> None:
        for step in way[:-1]:
            data = data[step]
        del data[way[-1]]

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (put("value", value="large"), "value: a number is needed, not text"),
        (put("tokens", value="The"), "tokens: a list is needed, not text"),
        (put("tokens", 1, value=7), r"tokens\[1\]: text is needed, not 7"),
        (put("position", value=1.5), "position"),
        (put("top_exact", value=1), "top_exact: true or false is needed"),
        (put("lengths", value=None), "lengths: a list is needed, not null"),
        (put("lengths", value=[]), "lengths: a row for every length"),
        (put("lengths", 2, value=[]), r"lengths\[2\]: an object with named fields is needed"),
        (put("lengths", 2, "stream", value=True), r"lengths\[2\]\.stream: a number is needed"),
        (put("lengths", 2, "paths", value=-1), r"lengths\[2\]\.paths: a count is needed, not -1"),
        (put("lengths", 2, "paths", value=10**400), r"lengths\[2\]\.paths: a count is needed"),
        (put("lengths", 2, "paths", value=2.0), r"lengths\[2\]\.paths: a whole number is needed"),
        (put("lengths", 2, "length", value=5), "lengths: a row for every length"),
        (put("lengths", 2, "value", value=5.0), r"lengths\[2\]\.value: it does not follow"),
        (put("lengths", 2, "mean", value=None), r"lengths\[2\]\.mean: it does not follow"),
        (put("lengths", 2, "up_to", "predicted", value=3), r"lengths\[2\]\.up_to\.predicted"),
        (drop("lengths", 2, "without"), r"lengths\[2\]\.without: missing"),
        (put("difference", value=0.5), "difference: it does not follow"),
        (put("head_lengths", 0, 0, value=[1.0]), "head_lengths: a number for every length"),
        (put("head_lengths", 0, value=[]), "head_lengths: as many heads"),
        (put("head_values", 0, 1, value="x"), r"head_values\[0\]\[1\]: a number is needed, not text"),
        (put("players", "mlps", value=3.0), r"players\.mlps: a list is needed"),
        (put("top", 1, "heads", 0, value=[3]), r"top\[1\]\.heads\[0\]: a list of 2 is needed, not of 1"),
        (put("goal", "kind", value="wish"), r"goal\.kind"),
        (put("goal", "word", value=4), r"goal\.word"),
        (put("surprise", value=4), "unknown fields .*surprise"),
        (drop("dtype"), "dtype: missing"),
    ],
)
def test_wrong_fields_are_refused_by_name(change: Callable[[dict[str, Any]], None], says: str, tmp_path: Path) -> None:
    data = json.loads(json.dumps(sample_paths().to_json()))
    change(data)
    with pytest.raises(FieldError, match=says):
        PathReport.from_json(data)
    path = tmp_path / "paths.json"
    path.write_text(json.dumps(data))
    with pytest.raises(RefusalError, match=f"is damaged .*{says}.*run `attnscope paths` again"):
        PathReport.load(path)


def test_a_table_has_a_row_for_each_length() -> None:
    report = sample_paths()
    table = report.table()
    assert list(table["length"]) == list(range(7))
    assert list(table["paths"]) == [row.paths for row in report.lengths]
    assert list(table["value"]) == [row.value for row in report.lengths]
    assert list(table["up_to_predicted"]) == [row.up_to.predicted for row in report.lengths]
    assert list(table["without_value"]) == [row.without.value for row in report.lengths]
    bare = replace(report, lengths=tuple(replace(row, energy=None) for row in report.lengths)).table()
    assert pd.api.types.is_float_dtype(bare["energy"])
    assert bare["energy"].isna().all()
    assert sample_paths(layers=40).table()["paths"].iloc[-1] == 4**40


def test_repr_is_one_line() -> None:
    assert repr(sample_paths()) == (
        "<PathReport of sample: logit of ' Rome' after the last token = 8.092, 7 lengths>"
    )  # fmt: skip
