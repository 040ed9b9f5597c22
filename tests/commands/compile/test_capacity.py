"""capacity: medians of measured widths, the cache, and widths that are not measured."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attnscope.commands.capacity import widths
from attnscope.commands.capacity.record import Capacity
from attnscope.commands.capacity.run import NARROWEST, capacity, known_constructions
from attnscope.commands.capacity.widths import Measurement, Point, Shelf, cache_folder, known_widths_json
from attnscope.commands.capacity.worklist import duration
from attnscope.core.errors import RefusalError
from attnscope.core.progress import Advance
from attnscope.core.registry import for_auto
from attnscope.reports.colours import SERIES
from attnscope.reports.theme import specification
from tests.commands.compile.stand_in import exact_construction, registered


class Meter:
    """A fake `measure`: width 10 n + k + seed, with made-up seconds (30 at n = 16)."""

    def __init__(self) -> None:
        self.asked: list[Point] = []

    def __call__(self, point: Point, seconds: float, advance: Advance) -> Measurement:
        self.asked.append(point)
        return Measurement(point, 10 * point.n + point.k + point.seed, 5.0, 30 * (point.n / 16) ** 2)


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Meter]:
    fake = Meter()
    monkeypatch.setattr("attnscope.commands.capacity.worklist.measure", fake)
    monkeypatch.setattr(widths, "known_widths", lambda: {})
    with registered(monkeypatch, exact_construction("joint"), exact_construction("margin")):
        yield fake


def ask(folder: Path, n: int = 20, k: int = 1, **options: Any) -> Capacity:
    return capacity(n, k, cache_folder=folder, **options)


def test_width_is_the_median_over_seeds(meter: Meter, tmp_path: Path) -> None:
    answer = ask(tmp_path)
    need = answer.needs[0]
    assert (need.method, need.d, need.widths, need.seeds) == ("joint", 202, (201, 202, 203), (0, 1, 2))
    assert answer.narrowest == need
    assert answer.to_json()["seeds"] == [0, 1, 2]


def test_methods_may_be_any_iterable(meter: Meter, tmp_path: Path) -> None:
    assert [need.method for need in ask(tmp_path, curves=False, methods=iter(["margin"])).needs] == ["margin"]


def test_second_call_measures_nothing_and_gives_the_same_answer(meter: Meter, tmp_path: Path) -> None:
    first = ask(tmp_path)
    measured = len(meter.asked)
    assert measured == len(set(meter.asked)) > 0
    again = ask(tmp_path)
    assert len(meter.asked) == measured
    assert (again.needs, again.against_n, again.against_k) == (first.needs, first.against_n, first.against_k)


def test_without_cache_everything_is_measured_again(meter: Meter, tmp_path: Path) -> None:
    ask(tmp_path)
    measured = len(meter.asked)
    ask(tmp_path, use_cache=False)
    assert len(meter.asked) == 2 * measured


def test_another_accuracy_or_version_is_measured_again(
    meter: Meter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(tmp_path, curves=False)
    measured = len(meter.asked)
    ask(tmp_path, curves=False, leak=0.02)
    ask(tmp_path, curves=False, dtype="bfloat16")
    assert len(meter.asked) == 3 * measured
    monkeypatch.setattr("attnscope.__version__", "99.0")
    ask(tmp_path, curves=False)
    assert len(meter.asked) == 4 * measured


def test_a_damaged_cache_is_measured_again(meter: Meter, tmp_path: Path) -> None:
    ask(tmp_path, curves=False)
    measured = len(meter.asked)
    files = sorted(tmp_path.iterdir())
    files[0].write_text("{")
    files[1].write_text('{"method": "joint"}')
    files[2].write_text(files[3].read_text())  # another point's number under this name
    ask(tmp_path, curves=False)
    assert len(meter.asked) == measured + 3
    assert all(path.suffix == ".json" for path in tmp_path.iterdir())


def test_an_unwritable_cache_is_ignored(meter: Meter, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert ask(tmp_path / "file" / "cache").needs[0].d == 202


def test_widths_beyond_the_budget_are_not_measured_and_have_a_note(meter: Meter, tmp_path: Path) -> None:
    answer = ask(tmp_path, n=4096, k=8, budget=0.0)
    assert not meter.asked
    assert all(need.d is None and not need.measured for need in answer.needs)
    assert answer.needs[0].note.startswith("not measured (would take about ")
    assert answer.narrowest is None


def test_costs_are_learned_from_smaller_sizes(meter: Meter, tmp_path: Path) -> None:
    """Half a minute at 16 rows is an hour at 1024: only sizes that fit into the budget are measured."""
    answer = ask(tmp_path, n=1024, k=1, budget=10.0)
    sizes = {point.n for point in meter.asked}
    assert 16 in sizes
    assert 1024 not in sizes
    assert answer.needs[0].note.startswith("not measured (would take about ")
    assert answer.needs[0].note.endswith(" h)") or answer.needs[0].note.endswith(" min)")


def test_the_question_itself_gets_the_rest_of_the_time(meter: Meter, tmp_path: Path) -> None:
    """However long it may take, the default constructions search the question until time runs out."""
    answer = ask(tmp_path, n=1024, k=1, budget=60.0)
    assert {(point.method, point.n) for point in meter.asked if point.n > 512} == {("joint", 1024), ("margin", 1024)}
    assert answer.needs[0].measured


def test_a_small_question_comes_before_its_curves(meter: Meter, tmp_path: Path) -> None:
    ask(tmp_path, n=64, k=2, budget=1e9)
    places = [(point.n, point.k) for point in meter.asked]
    assert places.index((64, 2)) < places.index((64, 8))
    assert [point.seed for point in meter.asked] == sorted(point.seed for point in meter.asked)


def test_shipped_widths_are_used_without_measuring(
    meter: Meter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = [
        Measurement(Point(method, 4096, 8, "float32", 0.1, 0.01, seed), 30 + seed, 9.0, 50.0)
        for method in ("joint", "margin")
        for seed in range(3)
    ]
    stored = [Measurement.from_json(one) for one in json.loads(known_widths_json(shipped))["measurements"]]
    assert sorted(stored, key=str) == sorted(shipped, key=str)
    monkeypatch.setattr(widths, "known_widths", lambda: {one.point: one for one in stored})
    answer = ask(tmp_path, n=4096, k=8, budget=0.0)
    assert answer.needs[0].d == 31
    assert not meter.asked


def test_interruption_keeps_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meter: Meter) -> None:
    def interrupted(point: Point, seconds: float, advance: Advance) -> Measurement:
        if len(meter.asked) == 3:
            raise KeyboardInterrupt
        return meter(point, seconds, advance)

    monkeypatch.setattr("attnscope.commands.capacity.worklist.measure", interrupted)
    answer = ask(tmp_path)
    assert answer.interrupted
    assert len(list(tmp_path.iterdir())) == 3


def test_measurements_that_were_cut_short_are_not_stored(tmp_path: Path) -> None:
    point = Point("joint", 8, 1, "float32", 0.1, 0.01, 0)
    shelf = Shelf(tmp_path, fresh=True)
    shelf.put(Measurement(point, 7, 1.0, 3.0, cut_short=True))
    assert shelf.get(point) is not None
    assert not list(tmp_path.iterdir())


def test_a_real_measurement_of_a_known_construction(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with registered(monkeypatch, exact_construction("joint", needs=5), exact_construction("margin", needs=99)):
        answer = ask(tmp_path, n=12, k=1, curves=False, seeds=(0, 1))
    joint, margin = answer.needs
    assert (joint.d, joint.widths) == (5, (5, 5))
    assert (margin.d, margin.widths, margin.seeds) == (None, (None, None), (0, 1))
    assert "no width reaches" in margin.note


def test_record_has_bounds_and_the_width_of_the_theorem(meter: Meter, tmp_path: Path) -> None:
    data = ask(tmp_path, n=256, k=4, budget=0.0).to_json()
    assert data["universal_lower_bound"] == 8
    assert data["theorem_width"] > 100_000
    assert {bound["name"] for bound in data["bounds"]} >= {"universal", "typical"}
    json.dumps(data, allow_nan=False)


def test_the_chart_has_both_panels_with_bounds_dashed(meter: Meter, tmp_path: Path) -> None:
    document = specification(ask(tmp_path, n=64, k=2).chart())
    titles = [panel["layer"][0]["encoding"]["x"]["title"] for panel in document["hconcat"]]
    assert titles == ["tokens n, k = 2", "keys of a row k, n = 64"]
    dashed, solid, *_ = document["hconcat"][0]["layer"]
    assert dashed["encoding"]["strokeDash"]["scale"]["domain"] == ["keys for all patterns", "most patterns"]
    assert "strokeDash" not in solid["encoding"]
    assert solid["encoding"]["y"]["scale"]["type"] == "log"


def test_every_construction_has_a_colour_of_its_own() -> None:
    assert all(len(set(colours)) >= len(known_constructions()) for colours in SERIES.values())


def test_chart_without_measured_widths_is_refused(meter: Meter, tmp_path: Path) -> None:
    with pytest.raises(RefusalError, match="`budget=`"):
        ask(tmp_path, budget=0.0).chart()


def test_refusals(tmp_path: Path) -> None:
    for wrong, says in (
        ({"n": 1, "k": 1}, "at least 2"),
        ({"n": 8, "k": 9}, "between 1 and 8"),
        ({"n": 8, "k": 0}, "between 1 and 8"),
        ({"n": 8, "k": 1, "dtype": "float31"}, "Did you mean"),
        ({"n": 8, "k": 1, "leak": 2.0}, "leak"),
        ({"n": 8, "k": 1, "seeds": ()}, "seed"),
        ({"n": 8, "k": 1, "seeds": (0, -3)}, "A seed of -3"),
        ({"n": 8, "k": 1, "methods": iter(["jiont"])}, "Did you mean 'joint'"),
        ({"n": 8, "k": 1, "budget": -1.0}, "budget"),
        ({"n": 8, "k": 1, "methods": ("jiont",)}, "Did you mean 'joint'"),
    ):
        with pytest.raises(RefusalError, match=says):
            ask(tmp_path, **wrong)


def test_the_cache_is_where_the_system_keeps_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "attnscope" / "capacity"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "attnscope" / "capacity"


def test_shipped_widths_are_readable() -> None:
    shipped = widths.known_widths().values()
    assert len(shipped) > 100
    assert all(one.point.seed in (0, 1, 2) for one in shipped)
    assert all(one.d is not None for one in shipped if one.cut_short)  # a width found before the clock ended the search


def test_durations() -> None:
    assert [duration(s) for s in (0.1, 40.0, 200.0, 9000.0, 400_000.0)] == ["1 s", "40 s", "3 min", "2 h", "5 days"]


def test_shipped_widths_need_no_search_and_no_torch() -> None:
    program = (
        "import sys; from attnscope.commands.capacity.run import capacity\n"
        "answer = capacity(256, 4)\n"
        "assert answer.shipped and answer.narrowest.method == 'joint', answer\n"
        "assert not {'torch', 'scipy.sparse'} & set(sys.modules)\n"
        "print(*answer.sentences())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "from the table that ships with attnscope" in done.stdout
    assert "--no-cache" in done.stdout


def test_widths_outside_the_table_or_with_a_budget_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points: list[Point] = []

    def measured(point: Point, seconds: float, advance: Advance) -> Measurement:
        points.append(point)
        return Measurement(point, 9, 5.0, 0.01)

    monkeypatch.setattr("attnscope.commands.capacity.worklist.measure", measured)
    options: dict[str, Any] = {"cache_folder": tmp_path, "curves": False}
    assert capacity(64, 4, **options).shipped
    assert not points
    for question in ({"leak": 0.02}, {"seeds": (7,)}, {"use_cache": False}, {"budget": 50.0, "seeds": (0, 8)}):
        points.clear()
        assert not capacity(64, 4, **options, **question).shipped
        assert points


def test_narrowest_is_the_construction_of_compile() -> None:
    one_pattern = for_auto("one pattern")
    assert one_pattern is not None
    assert one_pattern.name == NARROWEST
