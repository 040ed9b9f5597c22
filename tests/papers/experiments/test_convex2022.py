"""`convex2022`, small enough to run in every test."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attnscope.core.experiment import UnsavedSession
from attnscope.papers.experiments.convex2022 import convex2022

TINY = replace(
    convex2022.presets["quick"],
    samples=4,
    tokens=2,
    width=2,
    gates=2,
    heads=(1, 4),
    starts=1,
    descent=8,
    digits_beta=30.0,
    digits_accuracy=0.1,
    digits_steps=50,
    digits_descent=2,
)


def test_unsolved_cvxpy_problem_is_reported_and_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnscope.papers.trials.convex_floor.oracle", lambda problem: (None, "optimal_inaccurate"))
    monkeypatch.setattr("attnscope.papers.experiments.convex2022.digits_at_hand", lambda: False)
    found = convex2022.run(TINY, (0,), UnsavedSession())
    verdicts = {claim.name: claim.verdict for claim in convex2022.judged(found)}
    assert verdicts["optimum_is_cvxpys"] == "not run"
    said = [one for one in found.remarks if "CVXPY did not solve" in one]
    assert [("linear heads, seed 0" in one, "optimal_inaccurate" in one) for one in said] == [
        (True, True),
        (False, True),
    ]


def test_without_the_extra_its_claims_are_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = convex2022.run(TINY, (0,), UnsavedSession())
    verdicts = {claim.name: claim.verdict for claim in convex2022.judged(found)}
    assert verdicts["optimum_is_cvxpys"] == verdicts["certified_on_digits"] == "not run"
    assert "attnscope[convex]" in found.remarks[-1]
