"""The file format is stable: every survey fits the schema in the package, and every earlier version can be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from attnscope.commands.scan.survey.provenance import STEPS, VERSION, schema
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.errors import RefusalError
from tests.commands.scan.survey.sample import sample_survey

KEPT = Path(__file__).parent / "kept"  # one file of every version, written by attnscope at that version


def fits(data: Any, version: int = VERSION) -> bool:
    return bool(jsonschema.Draft202012Validator(schema(version)).is_valid(data))


def test_schemas_are_schemas() -> None:
    for version in range(1, VERSION + 1):
        jsonschema.Draft202012Validator.check_schema(schema(version))
        assert schema(version)["properties"]["version"] == {"const": version}
    with pytest.raises(RefusalError, match="There is no version 99"):
        schema(99)


def test_what_is_written_fits(tmp_path: Path) -> None:
    sample_survey().save(tmp_path / "survey.json")
    jsonschema.validate(json.loads((tmp_path / "survey.json").read_text()), schema())


@pytest.mark.parametrize(
    ("where", "what"),
    [
        (("version",), 2),
        (("more",), 1),
        (("cells", 0, "key", 4), "0"),
        (("cells", 0, "moments", "total", 0), 1.5),
        (("cells", 0, "shape"), [2, 2]),
        (("cells", 0, "sketch", 0), "x"),
        (("cards", "entropy", "scope"), "layer"),
        (("provenance", "corpus", "tokens"), "many"),
    ],
    ids=str,
)
def test_what_is_no_survey_does_not_fit(where: tuple[Any, ...], what: Any) -> None:
    data = json.loads(json.dumps(sample_survey().to_json()))
    assert fits(data)
    at = data
    for step in where[:-1]:
        at = at[step]
    at[where[-1]] = what
    assert not fits(data)


@pytest.mark.parametrize("version", range(1, VERSION + 1))
def test_a_file_of_every_version_can_be_read(version: int) -> None:
    data = json.loads((KEPT / f"survey-{version}.json").read_text())
    assert data["version"] == version
    assert fits(data, version)
    read = Survey.load(KEPT / f"survey-{version}.json")
    assert fits(json.loads(json.dumps(read.to_json())))
    assert read.values("entropy").shape == (2, 2)
    assert float(read.values("entropy")[1, 0]) == 1.25


def test_there_is_a_step_from_every_earlier_version() -> None:
    assert set(STEPS) == set(range(1, VERSION))


def test_steps_are_taken_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that there are two later versions: a file of today is converted to the last one."""
    sample_survey().save(tmp_path / "survey.json")
    taken = []

    def step(data: Any) -> Any:
        taken.append(data["version"])
        return data

    monkeypatch.setattr(Survey, "VERSION", 3)
    monkeypatch.setattr(Survey, "STEPS", {1: step, 2: step})
    assert Survey.load(tmp_path / "survey.json").cells == sample_survey().cells
    assert taken == [1, 2]
    monkeypatch.setattr(Survey, "STEPS", {2: step})
    with pytest.raises(RefusalError, match="survey of version 1 but this attnscope reads version 3"):
        Survey.load(tmp_path / "survey.json")
