"""What every record does, whatever its kind; and what none does: fail in the middle because its file was edited."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pandas
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

import attnscope
from attnscope.commands.records import class_of
from attnscope.core.errors import RefusalError
from attnscope.reports.terminal import print_record
from attnscope.reports.theme import configuration, specification
from tests.commands.samples import ALL, sample

WRONG: tuple[Any, ...] = (None, [], {}, "text", "", -1, 0, 1.5, 10**30, True, ["x"], {"x": 1}, "\x1b[31m\uffff", "inf")
DOCUMENTS = tuple(kind for kind in ALL if kind != "compiled")  # a head is no JSON; tests/commands/test_compiled.py


def _file(kind: str, folder: Path) -> Path:
    return folder / class_of(kind).FILE


@pytest.mark.parametrize("kind", ALL)
def test_what_is_saved_is_read_back(kind: str, tmp_path: Path) -> None:
    record = sample(kind)
    path = record.save(_file(kind, tmp_path))
    for read in (attnscope.load(path), attnscope.load(tmp_path), class_of(kind).load(path)):
        assert type(read) is type(record)
        assert read.save(
            tmp_path / "again.safetensors" if kind == "compiled" else tmp_path / "again.json"
        ).read_bytes() == (path.read_bytes())


@pytest.mark.parametrize("kind", ALL)
def test_it_speaks(kind: str) -> None:
    record = sample(kind)
    assert isinstance(record.table(), pandas.DataFrame)
    assert len(record.table())
    assert record.sentences()
    assert all(sentence.strip() for sentence in record.sentences())
    assert 0 < len(repr(record)) < 250
    assert "\n" not in repr(record)
    shown = record._repr_html_()
    assert shown.startswith("<div")
    assert "<script" not in shown


@pytest.mark.parametrize("kind", ALL)
def test_its_chart_has_its_look_and_can_be_put_beside_another(kind: str) -> None:
    record = sample(kind)
    for theme in ("light", "dark"):
        own, shown = configuration(theme), record.chart(theme=theme).to_dict()["config"]
        assert {name: shown[name] for name in own if name != "view"} == {k: own[k] for k in own if k != "view"}
        assert specification(record.chart(theme=theme), None)["config"] == own  # what `save` writes
    with pytest.raises(RefusalError, match="no theme called 'page'"):
        record.chart(theme="page")
    bare = record.chart(theme=None)
    assert len((bare | bare).to_dict()["hconcat"]) >= 2


@pytest.mark.parametrize("kind", ALL)
def test_its_page_and_its_screen(kind: str, tmp_path: Path) -> None:
    page = attnscope.report(sample(kind), tmp_path / "new" / "page.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "Content-Security-Policy" in page
    assert "<svg" in page
    written = StringIO()
    print_record(sample(kind), files={"Page": tmp_path / "page.html"}, console=Console(width=80, file=written))
    screen = written.getvalue()
    assert "page.html" in screen
    assert max(map(len, screen.splitlines()[:-3])) <= 80


@pytest.mark.parametrize("kind", ALL)
def test_other_kinds_and_versions_are_refused(kind: str, tmp_path: Path) -> None:
    other = "collapse" if kind != "collapse" else "survey"
    path = sample(kind).save(_file(kind, tmp_path))
    with pytest.raises(RefusalError, match=f"of kind {kind}, not {other}"):
        class_of(other).load(path)
    if kind in DOCUMENTS:
        path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 99}))
        with pytest.raises(RefusalError, match="of version 99"):
            attnscope.load(path)
        path.write_text(json.dumps({"format": f"attnscope-{kind}", "version": 1}))
        with pytest.raises(RefusalError, match="is damaged"):
            attnscope.load(path)


def _places(thing: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if way:
        yield way
    items = thing.items() if isinstance(thing, dict) else enumerate(thing[:3]) if isinstance(thing, list) else ()
    for name, value in items:
        yield from _places(value, (*way, name))


def _edited(document: Any, way: tuple[Any, ...], value: Any, remove: bool) -> Any:
    made = copy.deepcopy(document)
    made.pop("sha256", None)  # else every edit is refused for the hash that does not fit
    place = made
    for step in way[:-1]:
        place = place[step]
    if remove:
        del place[way[-1]]
    else:
        place[way[-1]] = value
    return made


@pytest.fixture(autouse=True)
def _draw_nothing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of pages are written below: their charts are built and not drawn, which is what takes the time."""
    if request.node.name.startswith("test_an_edited_file"):
        blank = b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 10 10"></svg>'
        for module in ("attnscope.reports.export", "attnscope.reports.export"):
            monkeypatch.setattr(f"{module}.render", lambda *_, **__: blank)


@pytest.mark.parametrize("kind", DOCUMENTS)
@pytest.mark.parametrize("examples", [8, pytest.param(40, marks=pytest.mark.thorough)])
def test_an_edited_file_is_read_or_refused_and_never_breaks_what_is_made_of_it(
    kind: str, examples: int, tmp_path: Path
) -> None:
    document = json.loads(sample(kind).save(_file(kind, tmp_path)).read_text())
    document.pop("sha256")
    places = sorted(_places(document), key=str)
    path = tmp_path / "edited.json"
    refused = 0

    few = examples == 8 or kind in ("survey", "comparison", "treatment", "timeline")  # whose pages take long to draw

    @settings(max_examples=8 if few else examples, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.sampled_from(places), st.sampled_from(WRONG), st.booleans())
    def attempt(way: tuple[Any, ...], value: Any, remove: bool) -> None:
        nonlocal refused
        path.write_text(json.dumps(_edited(document, way, value, remove)))
        try:
            record = attnscope.load(path)
        except RefusalError:
            refused += 1
            return
        try:
            record.write_page(tmp_path / "page.html")
            record.sentences()
            repr(record)
            print_record(record, console=Console(width=80, file=StringIO()))
        except RefusalError:
            pass  # such as: nothing finite to draw

    attempt()
    assert refused > (0 if few else 5)  # the edits do reach what matters


@pytest.mark.parametrize(
    ("kind", "way", "value"),
    [
        ("survey", ("cells", 2, "moments", "count"), 1.5),
        ("survey", ("cells", 2, "moments", "count"), math.nan),
        ("survey", ("cells", 2, "moments", "count"), 1),
    ],
)
def test_numbers_that_cannot_be_are_refused(kind: str, way: tuple[Any, ...], value: Any, tmp_path: Path) -> None:
    """Whole counts that do not fit the sums beside them are seen when a spread is asked for."""
    path = sample(kind).save(_file(kind, tmp_path))
    path.write_text(json.dumps(_edited(json.loads(path.read_text()), way, value, remove=False)))
    with pytest.raises(RefusalError):
        attnscope.load(path).write_page(tmp_path / "page.html")


@pytest.mark.parametrize("way", [("head_lengths", 0, 0, 1), ("head_values", 0, 0)])
@pytest.mark.parametrize("value", [None, "inf"])
def test_a_page_draws_what_is_no_number(way: tuple[Any, ...], value: Any, tmp_path: Path) -> None:
    path = sample("paths").save(_file("paths", tmp_path))
    path.write_text(json.dumps(_edited(json.loads(path.read_text()), way, value, remove=False)))
    assert attnscope.load(path).write_page(tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")
