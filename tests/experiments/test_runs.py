"""Every experiment runs at a toy size: all numbers that its claims ask for are there, and depend on the seed alone."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from attnscope.core.experiment import Bare, Point, Result
from attnscope.core.plain import plain
from attnscope.core.registry import experiments
from attnscope.trials.learned_paths import Learned


def tiny(name: str) -> Any:
    quick = experiments()[name].presets["quick"]
    if name == "dong2021":
        toy = Learned(2, 2, 8, (12, 4), steps=2, batch=4, rate=1e-3)
        return replace(
            quick,
            sort=toy,
            hull=toy,
            memorisation=toy,
            shapes=(),
            samples=(5, 20),
            chain=(8, 2, 3, 8),
            chain_paths=3,
            chain_samples=1,
            circle_widths=(4, 8),
            circle_points=40,
            circle_steps=2,
            applied=10,
        )
    if name == "stopping_collapse":
        return replace(quick, layers=4, width=8, tokens=8, sequences=1, window=1)
    if name == "noci2022":
        return replace(quick, width=8, tokens=6, sequences=1, depths=(1, 2, 4))
    return replace(
        quick,
        sizes=(8, 16),
        counts=(1, 2),
        count_n=8,
        draws=2,
        halvings=1,
        theorem_draws=2,
        many=2,
        many_n=16,
        many_k=2,
    )


def run(name: str, seeds: tuple[int, ...]) -> Result:
    return experiments()[name].run(tiny(name), seeds, Bare())


@pytest.fixture(scope="module", params=list(experiments()))
def twice(request: pytest.FixtureRequest) -> tuple[str, Result, Result]:
    return request.param, run(request.param, (0, 1)), run(request.param, (0,))


def test_every_number_that_a_claim_asks_for_is_measured(twice: tuple[str, Result, Result]) -> None:
    name, both, _ = twice
    needs_a_shape = {"attention_alone_collapses", "mlps_alone_do_not_stop_it", "skips_stop_it", "curves_as_published"}
    for claim in experiments()[name].judged(both):
        if not (name == "dong2021" and claim.name in needs_a_shape):
            assert claim.verdict != "not run", claim.name


def test_a_seed_gives_the_same_numbers_beside_others_and_alone(twice: tuple[str, Result, Result]) -> None:
    _, both, one = twice
    for quantity, values in one.measured.items():
        assert list(values) == list(both.measured[quantity])[: len(values)], quantity


def test_seeds_differ(twice: tuple[str, Result, Result]) -> None:
    _, both, _ = twice
    assert any(len(set(values)) > 1 for values in both.measured.values())


def test_results_are_plain(twice: tuple[str, Result, Result]) -> None:
    _, both, _ = twice
    json.dumps(plain({"measured": both.measured, "records": both.records}), allow_nan=False)
    for figure in both.figures:
        assert figure.rows
        assert figure.title
        assert figure.caption
        for row in figure.rows:
            assert isinstance(row, Point)
            assert row.series


def test_figures_have_names_of_their_own(twice: tuple[str, Result, Result]) -> None:
    _, both, _ = twice
    assert len({figure.name for figure in both.figures}) == len(both.figures)
