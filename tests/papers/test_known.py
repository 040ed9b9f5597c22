"""Recorded runs agree with the current experiments."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files

import pytest

from attnscope.core.experiment import PRESETS, VERDICTS, Bound
from attnscope.core.registry import experiments
from attnscope.papers.known import FILE, NOT_RUN, known, listed, recorded
from attnscope.papers.run import reproduce

# An experiment without a whole run is listed as not run, until tools/record_verdicts.py gets its results.
ON_RECORD = [name for name, one in experiments().items() if known(one.card)]


def test_recorded_experiments_exist() -> None:
    assert ON_RECORD
    assert set(json.loads(files("attnscope.papers").joinpath(FILE).read_text("utf-8"))) == set(ON_RECORD)


@pytest.mark.parametrize("name", ON_RECORD)
def test_every_claim_has_a_verdict_on_record(name: str) -> None:
    one = experiments()[name]
    for run in known(one.card):
        assert set(run.verdicts) == {claim.name for claim in one.claims}, "record the runs again"
        assert set(run.verdicts.values()) <= set(VERDICTS)
        assert run.seeds >= 1
        assert run.preset in run.words


def test_changed_rule_has_no_recorded_verdict() -> None:
    one = experiments()["noci2022"]
    first = replace(one.claims[0], holds=(Bound("something", ">", 0.5),))
    changed = replace(one, claims=(first, *one.claims[1:]))
    assert all(first.name not in run.verdicts for run in known(changed.card))
    assert all(len(run.verdicts) == len(one.claims) - 1 for run in known(changed.card))
    assert all(run.brief.endswith(", 1 changed") for run in known(changed.card))


@pytest.mark.parametrize("name", ON_RECORD)
def test_the_list_shows_each_preset_that_is_on_record(name: str) -> None:
    one = experiments()[name].card
    said = dict(zip(PRESETS, listed(one).brief, strict=True))
    assert {preset for preset, words in said.items() if words != NOT_RUN} == {run.preset for run in known(one)}
    for run in known(one):
        good = list(run.verdicts.values()).count("reproduced")
        assert said[run.preset].startswith(f"{good} of {len(run.verdicts)}")


def test_record_equals_the_run() -> None:
    done = reproduce("noci2022", seeds=1)
    kept = recorded(done)
    assert {name: claim.verdict for name, claim in kept.claims.items()} == {
        claim.name: claim.verdict for claim in done.claims
    }
    assert kept.preset == "quick"
    assert kept.seeds == (0,)
    assert done.experiment in repr(done)
    html = done._repr_html_()
    assert all(claim.statement.split("'")[0] in html for claim in done.claims)
