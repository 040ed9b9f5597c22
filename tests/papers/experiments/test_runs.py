"""Every experiment runs at a toy size: all numbers that its claims need exist and depend only on the seed."""

from __future__ import annotations

import json
import re
from importlib import import_module
from types import ModuleType

import pytest

from attnscope.core.decoding import plain
from attnscope.core.experiment import Point, Result, UnsavedSession
from attnscope.core.registry import experiments


def its_test(name: str) -> ModuleType:
    """The test file of an experiment: TINY says how to run it in seconds, NOT_RUN which claims that leaves out,
    OF_ALL_SEEDS which numbers are not of one seed."""
    return import_module(f"tests.papers.experiments.test_{name}")


def run(name: str, seeds: tuple[int, ...]) -> Result:
    return experiments()[name].run(its_test(name).TINY, seeds, UnsavedSession())


@pytest.fixture(scope="module", params=list(experiments()))
def twice(request: pytest.FixtureRequest) -> tuple[str, Result, Result]:
    return request.param, run(request.param, (0, 1)), run(request.param, (0,))


def test_every_number_that_a_claim_needs_is_measured(twice: tuple[str, Result, Result]) -> None:
    name, both, _ = twice
    left_out: set[str] = getattr(its_test(name), "NOT_RUN", set())
    for claim in experiments()[name].judged(both):
        measured = all(claim.measured.get(quantity) for quantity in claim.quantities)
        assert measured == (claim.name not in left_out), claim.name
        assert (claim.verdict == "not run") == (not measured or bool(claim.missing)), claim.name


def test_numbers_of_a_seed_do_not_depend_on_other_seeds(twice: tuple[str, Result, Result]) -> None:
    name, both, one = twice
    of_all: str = getattr(its_test(name), "OF_ALL_SEEDS", "^$")  # intervals and ends: these names, and no others
    for quantity, values in one.measured.items():
        if re.search(of_all, quantity):
            continue
        assert list(values) == list(both.measured[quantity])[: len(values)], quantity


def test_seeds_differ(twice: tuple[str, Result, Result]) -> None:
    _, both, _ = twice
    assert any(len(set(values)) > 1 for values in both.measured.values())


def test_results_are_strict_json_and_figures_are_complete(twice: tuple[str, Result, Result]) -> None:
    _, both, _ = twice
    json.dumps(plain({"measured": both.measured, "records": both.records}), allow_nan=False)
    for figure in both.figures:
        assert figure.rows
        assert figure.title
        assert figure.caption
        for row in figure.rows:
            assert isinstance(row, Point)
            assert row.series


def test_figure_names_are_unique(twice: tuple[str, Result, Result]) -> None:
    _, both, _ = twice
    assert len({figure.name for figure in both.figures}) == len(both.figures)
