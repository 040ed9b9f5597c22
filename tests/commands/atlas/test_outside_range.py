"""A number far outside what real models show is wrong, if it means the same in all of them and enough are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attnscope.commands.atlas.record import Atlas, Entry, EntryStack, Grid
from attnscope.commands.scan.diagnose import diagnose
from attnscope.commands.scan.survey.builder import SurveyBuilder
from attnscope.core.finding import Finding
from attnscope.core.measure import measure_cards

CARDS = measure_cards()


def grown(growths: tuple[float, ...], spike: float = 5.0, **model: Any) -> list[Finding]:
    """Return the findings in a survey with these growths of the norm, beside the atlas in force."""
    ledger = SurveyBuilder({name: CARDS[name] for name in ("norm_growth", "spike")})
    for layer, growth in enumerate(growths):
        ledger.observe("norm_growth", "value", "encoder", "stream", layer + 1, np.array([growth, growth]))
        ledger.observe("spike", "value", "encoder", "stream", layer, np.array([spike, spike]))
    return [each for each in diagnose(ledger.survey({"model": model})) if each.kind == "outside_range"]


def _stack(number: int) -> EntryStack:
    grids = (
        Grid("norm_growth", "value", "stream", ((0.8,), (1.0,), (2.0,))),
        Grid("spike", "value", "stream", ((1.0,), (9.0,))),
    )
    return EntryStack("encoder", "encoder", 3 + number, 1, grids)  # each of another shape


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that replaces the atlas by one of so many models, with growths between 0.8 and 2."""

    def replaced(count: int) -> None:
        entries = tuple(
            Entry(f"m{n}", "f", "text", "MIT", "a==1", "english", f"m{n}", 10**6, (_stack(n),)) for n in range(count)
        )
        monkeypatch.setattr("attnscope.commands.atlas.ranges.packaged", lambda: Atlas(entries))

    return replaced


def test_far_outside_is_wrong_and_named_with_its_block(models: Any) -> None:
    models(12)
    (finding,) = grown((1.0, 9.0, 1.1))
    assert finding.severity == "wrong"
    assert "Norm growth is 9 in block 2, far outside what 12 real encoders show (0.8 to 2)." in finding.sentence


@pytest.mark.parametrize("growths", [(1.0, 2.0, 0.9), (1.0, 3.0, 1.0)])  # inside, and beyond by less than the margin
def test_inside_or_a_little_beyond_is_silent(models: Any, growths: tuple[float, ...]) -> None:
    models(12)
    assert grown(growths) == []


def test_few_models_judge_nothing(models: Any) -> None:
    models(11)
    assert grown((1.0, 9.0, 1.1)) == []


def test_sizes_that_depend_on_the_architecture_are_not_judged(models: Any) -> None:
    models(12)
    assert grown((1.0, 1.0, 1.0), spike=1e6) == []


def test_random_weights_are_not_judged(models: Any) -> None:
    models(12)
    assert grown((1.0, 9.0, 1.1), weights="random") == []
