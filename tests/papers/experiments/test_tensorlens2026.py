"""`tensorlens2026`, small enough to run in every test."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import attnscope
from attnscope.commands.treat.train import Recipe
from attnscope.core.experiment import UnsavedSession, median
from attnscope.papers.experiments.tensorlens2026 import numbers_of, tensorlens2026
from attnscope.papers.trials import operator_rows
from attnscope.papers.trials.operator_rows import (
    MAPS,
    METHODS,
    Words,
    classifier_runs,
    rows_of_maps,
    trained_classifier,
    word_texts,
)

WORDS = Words(tokens=8)
TINY = replace(
    tensorlens2026.presets["quick"],
    words=WORDS,
    width=8,
    layers=1,
    recipe=Recipe(steps=2, rate=1e-3),
    texts=2,
    model=None,
    probes=2,
)
NOT_RUN = {claim.name for claim in tensorlens2026.claims if any(q.startswith("model_") for q in claim.quantities)}


def test_the_answer_is_the_class_with_most_words() -> None:
    ids, labels = word_texts(WORDS, 50, torch.Generator().manual_seed(0))
    assert bool((ids[:, -1] == WORDS.vocabulary - 1).all())
    for row, label in zip(ids.tolist(), labels.tolist(), strict=True):
        votes = [sum(one // WORDS.each == kind for one in row if one < 18) for kind in range(WORDS.classes)]
        assert votes[label] == max(votes)
        assert votes.index(max(votes)) == label


def test_rows_are_those_of_the_operators_maps() -> None:
    model = trained_classifier(WORDS, 8, 2, Recipe(steps=2, rate=1e-2), 0, UnsavedSession())
    (run,) = classifier_runs(model, WORDS, 1, 0)
    rows = rows_of_maps(run)
    op = attnscope.operator(model, run.read.batch, dtype="float32").stream
    for kind in MAPS:
        # float32: sums of some hundred products.
        torch.testing.assert_close(rows[kind], torch.tensor(op.map(kind).row(-1)), atol=1e-5, rtol=1e-4)


def test_every_method_has_a_bar_and_a_missing_model_has_none() -> None:
    found = tensorlens2026.run(TINY, (0,), UnsavedSession())
    bars, table = found.figures
    assert {row.series for row in bars.rows} == {"the classifier"}
    assert len(bars.rows) == 7
    assert len(table.rows) == 8
    # Float64 rounds to 1e-16; a layer of eight channels adds some hundred of such.
    assert median(found.measured["classifier_untouched_float64"]) <= 1e-10


def test_operator_is_compared_with_the_unmodified_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim is not reproduced if the unmodified model gives another output."""
    model = trained_classifier(WORDS, 8, 1, Recipe(steps=2, rate=1e-2), 0, UnsavedSession())
    (run,) = classifier_runs(model, WORDS, 1, 0)
    plain = operator_rows.untouched(run.loaded, run)
    torch.testing.assert_close(plain, model(run.read.batch["input_ids"])[0], atol=0, rtol=0)
    honest = operator_rows.checked(run, 2, 0)
    assert honest["untouched_float32"] <= 1e-4
    monkeypatch.setattr(operator_rows, "untouched", lambda loaded, run: 1.01 * plain)
    assert operator_rows.checked(run, 2, 0)["untouched_float32"] == pytest.approx(0.01 / 1.01, rel=1e-2)


def test_maps_that_differ_by_chance_are_not_called_more_faithful() -> None:
    """Eighteen separate comparisons find a difference in every other run of pure noise."""
    claims = [claim for claim in tensorlens2026.claims if "truer" in claim.name]
    draw = np.random.default_rng(0)
    wrong = 0
    for _ in range(100):
        gaps = {name: draw.normal(size=16).tolist() for name in METHODS}
        measured = {
            name: [value] for name, value in numbers_of({"subject": "model", "checked": {}, "gaps": gaps}).items()
        }
        wrong += any(claim.judged(measured).verdict in ("reproduced", "contradicted") for claim in claims)
    # At most 5 expected; binomial with a standard deviation of 2.2: above 12 lies less than 1 in 1000.
    assert wrong <= 12
    better = {name: (np.linspace(0, 0.1, 16) + (name in MAPS)).tolist() for name in METHODS}
    numbers = numbers_of({"subject": "model", "checked": {}, "gaps": better})
    assert numbers["model_norm_over_rollout_low"] == pytest.approx(1.0)
