"""A placement: which numbers of a model are usual beside real models, by hand and for the atlas in the package."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import attnscope
from attnscope.cli.main import app
from attnscope.commands.place.record import Placement, placement_of
from attnscope.commands.place.words import document, verdict
from attnscope.core.errors import RefusalError
from tests.commands.atlas.made import atlas, entry
from tests.commands.compare.made import made

OTHERS = [entry(f"e{n}", [n / 10, n / 10 + 0.02], inside=0.8 + n / 100) for n in range(6)]


def invoke(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def refused(*words: str | Path, says: str) -> None:
    result = invoke(*words)
    assert isinstance(result.exception, RefusalError), (result.exception, result.output)
    assert says in result.exception.sentence


def placed(*values: float) -> Placement:
    own = entry("own", values)
    return placement_of("own", own.parameters, own.stacks, atlas(*OTHERS, own))


def test_numbers_by_hand() -> None:
    (row,) = placed(0.05, 0.25, 0.9, 0.9).rows
    assert (row.usual_low, row.usual_high, row.models) == (0.0, 0.52, 6)
    assert (row.below, row.above, row.inside) == (0.0, 0.5, 0.5)
    assert row.median == pytest.approx(0.575)
    assert row.smaller == 6
    assert row.median_share == 1.0
    assert row.low_share < row.median_share


def test_verdict_says_what_is_least_usual_only_if_most_of_it_is_outside() -> None:
    usual = verdict(placed(0.1, 0.2, 0.3, 0.4))
    assert usual.level == "calm"
    assert "Least usual" not in usual.sentence
    assert usual.sentence == (
        "In the average measure 100% of its numbers are in the usual range. For 6 real decoders, judged in the same"
        " way, it is 80% to 85%."
    )
    odd = verdict(placed(0.9, 0.9, 0.9, 0.3))
    assert odd.level == "note"
    assert odd.sentence.endswith(
        "Least usual: sink mass (25% in the usual range, 0 to 0.52 in 6 small decoders; 75% are above)."
    )


def test_the_model_itself_is_no_reference_for_itself() -> None:
    one = attnscope.atlas().entries[0]
    for row in attnscope.place(one).rows:
        assert row.models < len({e.shape for e in attnscope.atlas().entries})


def test_every_model_of_the_atlas_is_placed_as_it_was_when_the_atlas_was_made() -> None:
    for known in attnscope.atlas().entries[::5]:
        assert attnscope.place(known).inside == pytest.approx(known.inside, abs=1e-3)


def test_a_placement_is_drawn_and_told() -> None:
    record = attnscope.place(attnscope.atlas()["antiberty"])
    rows = [line for section in document(record).sections for table in section.tables for line in table.rows]
    assert len(rows) == len(record.rows)
    assert "real encoders" in record.sentences()[0]
    drawn = json.dumps(record.chart().to_dict())
    assert "attention writes" in drawn


def test_on_the_command_line(tmp_path: Path) -> None:
    page = tmp_path / "placed.html"
    done = invoke("compare", "pocket", "--to", "atlas", "--samples", "4", "--max-tokens", "32", "--out", page, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["kind"] == "decoder"
    assert "real decoders" in page.read_text("utf-8")
    refused("compare", "pocket", "pocket", "--to", "atlas", says="one model or survey at a time")
    refused("compare", "pocket", "--to", "atlas", "--fail-on", "wrong", says="judges nothing")
    refused("atlas", "nothing-like-this", says="no model 'nothing-like-this'")


def test_cautions_name_what_makes_a_placement_unfair() -> None:
    corpus = {**made().provenance.get("corpus", {}), "window": 128}
    fair = made(corpus=corpus)
    assert attnscope.place(fair).notes == ()
    random = {**fair.provenance["model"], "weights": "random"}
    unfair = made({("spike", 2): float("nan")}, model=random, corpus={**corpus, "window": 16})
    notes = " ".join(attnscope.place(unfair).notes)
    assert "weights are random" in notes
    assert "NaN or infinite and left out" in notes
    assert "These sequences have 16 tokens" in notes


def test_a_kind_with_too_few_models_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnscope.commands.place.run.packaged", lambda: atlas(*OTHERS[:3]))
    with pytest.raises(RefusalError, match="too few models of this kind"):
        attnscope.place("pocket", samples=2, max_tokens=16)
