"""Other programs can write to the cache of widths, so impossible measurements in it are ignored and measured again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from attnscope.commands.capacity import widths
from attnscope.commands.capacity.widths import Measurement, Point, Shelf, known_widths
from attnscope.core.decoding import FieldError

POINT = Point("frame", 32, 2, "float32", 0.1, 0.01, 0)
HONEST = Measurement(POINT, 6, 12.5, 0.25)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file of one measurement."""
    monkeypatch.setattr(widths, "known_widths", dict)
    Shelf(tmp_path).put(HONEST)
    (file,) = tmp_path.iterdir()
    assert Shelf(tmp_path).get(POINT) == HONEST
    return file


TAMPERED: list[dict[str, Any]] = [
    {"d": -5},
    {"d": 0},
    {"d": 10**12},
    {"d": 6.5},
    {"d": "6"},
    {"d": True},
    {"d": None},  # reached the accuracy, but without a width
    {"max_logit": None},
    {"max_logit": "inf"},
    {"seconds": -1.0},
    {"seconds": None},
    {"seconds": "soon"},
    {"cut_short": "no"},
    {"cut_short": True},  # such a measurement is never saved
    {"refused": 7},
    {"refused": "It cannot be done: give up."},
    {"n": 64},  # another point's
    {"note": "one field more"},
]


@pytest.mark.parametrize("change", TAMPERED, ids=str)
def test_impossible_cached_widths_are_ignored(kept: Path, change: dict[str, Any]) -> None:
    kept.write_text(json.dumps({**json.loads(kept.read_text()), **change}))
    assert Shelf(kept.parent).get(POINT) is None


@pytest.mark.parametrize("text", ["", "[]", "null", "7", "{}", '{"d": 4', "[" * 100_000, "\x00\x01"])
def test_malformed_cached_measurements_are_ignored(kept: Path, text: str) -> None:
    kept.write_text(text)
    assert Shelf(kept.parent).get(POINT) is None


def test_cached_measurement_with_a_missing_field_is_ignored(kept: Path) -> None:
    whole = json.loads(kept.read_text())
    for name in ("d", "max_logit", "seconds", *Point.__dataclass_fields__):
        kept.write_text(json.dumps({key: value for key, value in whole.items() if key != name}))
        assert Shelf(kept.parent).get(POINT) is None, name


def test_new_measurement_replaces_an_ignored_one(kept: Path) -> None:
    kept.write_text(json.dumps({**json.loads(kept.read_text()), "d": -5}))
    Shelf(kept.parent).put(HONEST)
    assert Shelf(kept.parent).get(POINT) == HONEST
    assert list(kept.parent.iterdir()) == [kept]


def test_every_measurement_survives_saving_and_loading() -> None:
    refused = Measurement(POINT, None, None, 0.0, refused="It cannot be built: give a larger n.")
    for one in (HONEST, refused, *known_widths().values()):
        assert Measurement.from_json(json.loads(json.dumps(one.to_json()))) == one
    with pytest.raises(FieldError, match="d: a whole number of 1 or more is needed, not -5"):
        Measurement.from_json({**HONEST.to_json(), "d": -5})
