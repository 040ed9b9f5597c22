"""`tensorlens2026`, small enough to run in every test."""

from __future__ import annotations

from dataclasses import replace

import torch

import attnscope
from attnscope.core.experiment import Bare, median
from attnscope.experiments.tensorlens2026 import tensorlens2026
from attnscope.models.train import Recipe
from attnscope.trials.operator_rows import MAPS, Words, classifier_runs, rows_of_maps, trained_classifier, word_texts

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
    model = trained_classifier(WORDS, 8, 2, Recipe(steps=2, rate=1e-2), 0, Bare())
    (run,) = classifier_runs(model, WORDS, 1, 0)
    rows = rows_of_maps(run)
    op = attnscope.operator(model, run.read.batch, dtype="float32").stream
    for kind in MAPS:
        # float32: sums of some hundred products.
        torch.testing.assert_close(rows[kind], torch.tensor(op.map(kind).row(-1)), atol=1e-5, rtol=1e-4)


def test_a_bar_for_every_method_and_none_for_a_model_that_is_not_there() -> None:
    found = tensorlens2026.run(TINY, (0,), Bare())
    bars, table = found.figures
    assert {row.series for row in bars.rows} == {"the classifier"}
    assert len(bars.rows) == 7
    assert len(table.rows) == 6
    assert median(found.measured["classifier_float64"]) <= 1e-10
