"""results.json is read back equal, also from older versions, and refused if it contradicts its own numbers."""

from __future__ import annotations

import copy
import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import attnscope
from attnscope.commands.reproduce.record import Reproduction
from attnscope.commands.reproduce.words import verdict
from attnscope.core.errors import RefusalError
from attnscope.core.experiment import Bound, Claim, Figure, Point
from attnscope.core.hashes import hashed
from attnscope.reports.terminal import print_record

NASTY = "<script>alert(1)</script>\"'&[x]\x1b[31m"
PRECISE = 0.12345678901234567
MEASURED: dict[str, tuple[float, ...]] = {
    "accuracy": (0.9, 0.8, 1.0),
    "loss": (math.nan, 0.1, 0.2),
    "growth": (math.inf, 3.0, math.inf),
    "precise": (PRECISE,) * 3,
}
CLAIMS = (
    Claim("held", "0000.00000", f"It is accurate {NASTY}.", "at least .9", (Bound("accuracy", ">=", 0.9),)),
    Claim("broken", "0000.00000", "The loss is small.", "below 1", (Bound("loss", "<", 1.0),)),
    Claim("grown", "0000.00000", "It grows.", "far", (Bound("growth", ">", 1e9),), (Bound("growth", "<=", 1.0),)),
    Claim("denied", "0000.00000", "No.", "0", (Bound("accuracy", "<=", 0.1),), (Bound("accuracy", ">=", 0.5),)),
    Claim("exact", "0000.00000", "A limit of many digits.", "it", (Bound("precise", ">=", PRECISE),)),
    Claim("left", "0000.00000", "Nobody looked.", "it", (Bound("unmeasured", ">", 0.0),)),
)
ROWS = tuple(Point(x, y, f"{NASTY} a", "panel", low=y / 2) for x, y in enumerate((0.5, math.nan, 0.25)))


def sample() -> Reproduction:
    return Reproduction(
        attnscope="0.1.0",
        experiment="sample2021",
        title=f"Title {NASTY}",
        paper="0000.00000",
        summary="Summary.",
        preset="quick",
        params={"steps": 6, "rates": [0.1, 0.2], "word": NASTY},
        seeds=(0, 1, 2),
        seconds=1.5,
        claims=tuple(claim.judged(MEASURED) for claim in CLAIMS),
        remarks=("A remark.",),
        measured=MEASURED,
        records=({"seed": 0, "losses": [0.1, None]},),
        figures=(
            Figure(f"curves {NASTY}", "t", "c", "x", "y", ROWS),
            Figure("bars", "t", "c", "x", "y", (Point("name", 1.0, "s"), Point("1.5", 2.0, "s")), "bars"),
        ),
    )


def old_document() -> dict[str, Any]:
    """Return a document of an older version, without limits as numbers and with fewer fields of points."""
    data = sample().to_json()
    data["claims"] = [claim for claim in data["claims"] if claim["name"] in ("held", "denied", "left")]
    data["measured"] = {"accuracy": [0.9, 0.8, 1]}
    data["counts"] = {"reproduced": 1, "not reproduced": 0, "contradicted": 1, "not run": 1}
    for claim in data["claims"]:
        del claim["holds"], claim["fails"]
    data["figures"][0]["rows"] = [{"x": 0, "y": 0.5, "series": "a"}, {"x": 1, "y": None, "low": None, "series": "a"}]
    return data


def test_it_is_read_back_equal_from_the_file_and_from_the_folder(tmp_path: Path) -> None:
    made = sample()
    path = made.save(tmp_path / "results.json")
    json.loads(path.read_text(), parse_constant=pytest.fail)
    for read in (Reproduction.load(path), Reproduction.load(tmp_path), attnscope.load(path), attnscope.load(tmp_path)):
        assert isinstance(read, Reproduction)
        assert read.to_json() == made.to_json()
        assert read.counts == {"reproduced": 3, "not reproduced": 1, "contradicted": 1, "not run": 1}
        assert read.measured["growth"] == (math.inf, 3.0, math.inf)
        assert read.claims[4].holds[0].limit == PRECISE  # the rule in words has six digits
        assert read.figures[1] == made.figures[1]
    again = Reproduction.load(path).save(tmp_path / "again.json")
    assert again.read_bytes() == path.read_bytes()


def test_a_file_of_an_older_attnscope_is_read(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps(old_document()))
    read = Reproduction.load(path)
    assert [claim.verdict for claim in read.claims] == ["reproduced", "contradicted", "not run"]
    assert read.claims[1].fails == (Bound("accuracy", ">=", 0.5),)
    first, second = read.figures[0].rows
    assert (first.x, first.y, first.series, first.panel, first.dashed) == (0, 0.5, "a", "", False)
    assert math.isnan(first.low)
    assert math.isnan(second.y)
    read.write_page(tmp_path / "page.html")


def test_the_verdict_counts_claims_and_names_those_that_did_not_hold() -> None:
    headline = verdict(sample())
    assert headline.level == "critical"
    assert headline.sentence == (
        "3 of 6 claims are reproduced; 1 is contradicted (denied), 1 is not reproduced (broken), 1 is not run (left)."
    )

    def of(*places: int) -> tuple[str, str]:
        some = verdict(replace(sample(), claims=tuple(sample().claims[number] for number in places)))
        return some.level, some.sentence

    assert of(0) == ("calm", "The claim is reproduced.")
    assert of(0, 2, 4) == ("calm", "All 3 claims are reproduced.")
    assert of(0, 1) == ("warning", "1 of 2 claims is reproduced; 1 is not reproduced (broken).")
    assert of(5, 5) == ("note", "None of 2 claims is reproduced; 2 are not run (left, left).")
    assert of(*[5] * 5)[1].endswith("5 are not run (left, left, left and 2 more).")
    assert verdict(replace(sample(), claims=())).level == "note"


def test_what_a_claim_takes_as_given_is_kept_and_said(tmp_path: Path) -> None:
    stands = replace(CLAIMS[0], name="unjudged", given=(Bound("precise", ">", 1.0),)).judged(MEASURED)
    made = replace(sample(), claims=(stands,))
    made.save(tmp_path / "results.json")
    read = Reproduction.load(tmp_path)
    assert read.claims == (stands,)
    assert (read.counts["not run"], read.counts["reproduced"]) == (1, 0)
    assert "not judged, because that needs precise > 1" in read.sentences()[1]
    stream = StringIO()
    print_record(read, console=Console(file=stream, width=200), files={})
    assert "not judged, because that needs precise > 1" in stream.getvalue()
    assert "judged only if precise &gt; 1" in attnscope.report(read, tmp_path / "page.html").read_text()
    data = json.loads((tmp_path / "results.json").read_text())
    data["claims"][0]["given"] = []
    data["claims"][0]["rule"]["given"] = []
    (tmp_path / "results.json").write_text(json.dumps(hashed(data)))
    with pytest.raises(RefusalError, match=r"claims\['unjudged'\]"):
        Reproduction.load(tmp_path)


def test_a_seed_without_a_number_has_a_row_in_the_table_and_is_written() -> None:
    """An experiment gives None for numbers that are not finite, also in claims that were never written."""
    claim = CLAIMS[0].judged({"accuracy": (None, 0.9, 0.8)})
    missing = CLAIMS[1].judged({"loss": (None,)})
    made = replace(sample(), claims=(claim, missing))
    assert made.table()[["median", "low", "high", "n"]].to_dict("records") == [
        {"median": pytest.approx(math.nan, nan_ok=True), "low": 0.8, "high": 0.9, "n": 3},
        pytest.approx({"median": math.nan, "low": math.nan, "high": math.nan, "n": 1}, nan_ok=True),
    ]
    assert "0.8 to 0.9 over 3 seeds" in " ".join(made.sentences())
    assert made._repr_html_().startswith("<div")


def _verdict(data: dict[str, Any]) -> None:
    data["claims"][1]["verdict"] = "reproduced"


def _unknown_verdict(data: dict[str, Any]) -> None:
    data["claims"][1]["verdict"] = "proved"


def _both_numbers(data: dict[str, Any]) -> None:
    data["measured"]["accuracy"] = data["claims"][0]["measured"]["accuracy"] = [0.1, 0.1, 0.1]
    data["claims"][0]["median"]["accuracy"] = 0.1


def _one_number(data: dict[str, Any]) -> None:
    data["claims"][0]["measured"]["accuracy"][0] = 0.95


def _median(data: dict[str, Any]) -> None:
    data["claims"][0]["median"]["accuracy"] = 0.95


def _words_of_the_rule(data: dict[str, Any]) -> None:
    data["claims"][0]["rule"]["reproduced"] = ["accuracy >= 0.99"]


def _no_rule(data: dict[str, Any]) -> None:
    data["claims"][0] |= {"holds": [], "rule": {"reproduced": [], "contradicted": []}}


def _counts(data: dict[str, Any]) -> None:
    data["counts"]["reproduced"] = 6


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_verdict, r"claims\['broken'\].verdict: 'reproduced' is in the file, but its rule and numbers give 'not repr"),
        (_unknown_verdict, "'proved' is in the file"),
        (_both_numbers, r"claims\['held'\].verdict"),
        (_one_number, r"claims\['held'\].measured"),
        (_median, r"claims\['held'\].median"),
        (_words_of_the_rule, r"claims\['held'\].rule"),
        (_no_rule, r"claims\['held'\].rule"),
        (_counts, "counts: 6 reproduced"),
    ],
)
def test_what_disagrees_with_its_own_numbers_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], says: str
) -> None:
    data = sample().to_json()
    change(data)
    (tmp_path / "results.json").write_text(json.dumps(data))
    with pytest.raises(RefusalError, match=says) as refused:
        Reproduction.load(tmp_path)
    assert "run `attnscope reproduce PAPER` again" in str(refused.value)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("claims",), None),
        (("claims", 0, "rule", "reproduced"), ["accuracy about 0.9"]),
        (("claims", 0, "holds", 0, "relation"), "=="),
        (("claims", 0, "holds", 0, "limit"), "0.9"),
        (("measured", "accuracy"), 0.9),
        (("measured", "accuracy", 0), "0.9"),
        (("figures", 0, "rows", 0), 5),
        (("figures", 0, "rows", 0, "y"), "high"),
        (("figures", 0, "rows", 0, "x"), [1]),
        (("figures", 0, "rows", 0, "x"), True),
        (("figures", 0, "kind"), "pie"),
        (("seeds",), "012"),
        (("seconds",), "long"),
        (("params",), [1]),
        (("records", 0), "numbers"),
        (("version",), 2),
        (("surprise",), 1),
    ],
)
def test_a_field_of_another_type_is_one_sentence(tmp_path: Path, place: tuple[Any, ...], value: Any) -> None:
    data = copy.deepcopy(sample().to_json())
    inner: Any = data
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    (tmp_path / "results.json").write_text(json.dumps(data))
    with pytest.raises(RefusalError) as refused:
        attnscope.load(tmp_path)
    assert "\n" not in str(refused.value)


def test_table_sentences_chart_and_repr() -> None:
    made = sample()
    table = made.table()
    assert list(table["claim"]) == ["held", "broken", "grown", "denied", "exact"]
    assert table[["median", "low", "high", "n"]].iloc[0].tolist() == [0.9, 0.8, 1.0, 3]
    sentences = made.sentences()
    assert sentences[0] == "Of 6 claims: 3 reproduced, 1 not reproduced, 1 contradicted, 1 not run."
    assert sentences[2] == "Not reproduced: The loss is small (below 1: loss not a number (0.1 to 0.2 over 3 seeds))."
    assert sentences[-1] == "A remark."
    assert repr(made) == (
        "<Reproduction of sample2021, preset quick: 3 reproduced, 1 not reproduced, 1 contradicted, 1 not run>"
    )
    assert NASTY not in made._repr_html_()
    assert made.chart("bars").to_dict()["layer"]
    assert made.chart().to_dict() == made.chart(made.figures[0].name).to_dict()
    with pytest.raises(RefusalError, match="Did you mean 'bars'"):
        made.chart("bras")


def test_the_page_of_a_file_cannot_bring_its_own_markup(tmp_path: Path) -> None:
    path = sample().save(tmp_path / "results.json")
    first = attnscope.report(sample(), tmp_path / "one.html").read_text()
    assert first.count("<script") == 2  # specifications as data, and the page's own
    assert "<script>alert" not in first
    assert attnscope.report(path, tmp_path / "two.html").read_text() == first
    assert attnscope.report(str(tmp_path), tmp_path / "three.html").read_text() == first


def test_the_screen_has_every_verdict_and_no_control_character() -> None:
    stream = StringIO()
    console = Console(file=stream, width=200, highlight=False)
    print_record(sample(), console=console, files={"Page": Path("page.html")})
    brief = stream.getvalue()
    assert all(claim.verdict in brief for claim in sample().claims)
    assert "· A remark." not in brief
    print_record(sample(), console=console, files={"Page": Path("page.html")}, verbose=True)
    shown = stream.getvalue()
    assert "\x1b" not in shown
    for words in ("reproduced", "not reproduced", "contradicted", "not run", "nothing", "· A remark.", "page.html"):
        assert words in shown


def test_it_is_read_and_drawn_again_where_there_is_no_torch(tmp_path: Path) -> None:
    sample().save(tmp_path / "results.json")
    program = (
        "import sys; sys.modules['torch'] = None; sys.modules['transformers'] = None\n"
        "from attnscope.cli.main import app\n"
        f"app(['report', {str(tmp_path)!r}, '--out', {str(tmp_path / 'page.html')!r}], standalone_mode=False)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "contradicted" in done.stdout
    assert (tmp_path / "page.html").read_text() == attnscope.report(sample(), tmp_path / "twin.html").read_text()
