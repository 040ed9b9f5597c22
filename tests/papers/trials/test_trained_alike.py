"""Numbers of models that were trained alike, checked by hand."""

from __future__ import annotations

import math

import pytest

from attnscope.core.experiment import Bound, Claim
from attnscope.papers.trials.trained_alike import accuracy_numbers, has_learned


def model(kind: str, accuracy: float, seed: int) -> dict[str, object]:
    return {"task": "sort", "kind": kind, "seed": seed, "accuracy": accuracy, "best_guess": 0.3}


def test_differences_are_of_one_seed_and_guessing_is_subtracted() -> None:
    models = [model("softmax", 0.9, 0), model("other", 0.8, 0), model("softmax", 0.7, 1), model("other", 0.75, 1)]
    numbers = accuracy_numbers(models, ("softmax", "other"))
    assert numbers["sort_softmax_over_other"] == pytest.approx([0.1, -0.05])
    assert numbers["sort_softmax_over_guessing"] == pytest.approx([0.6, 0.4])
    assert numbers["sort_accuracy_of_other"] == [0.8, 0.75]


@pytest.mark.parametrize(("softmax", "verdict"), [(0.31, "not run"), (0.45, "reproduced"), (math.nan, "not run")])
def test_models_that_learned_nothing_are_not_compared(softmax: float, verdict: str) -> None:
    given = (Bound.parse(has_learned("sort")),)
    claim = Claim("c", "p", "s", "e", (Bound("sort_softmax_over_other", "<=", 0.05),), given=given)
    models = [model("softmax", softmax, 0), model("other", 0.45, 0)]
    assert claim.judged(accuracy_numbers(models, ("softmax", "other"))).verdict == verdict
