"""`doubly_normalised2020`, small enough to run in every test; masses of keys, and soft clustering."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from attnscope.core.experiment import UnsavedSession
from attnscope.papers.experiments.doubly_normalised2020 import doubly_normalised2020
from attnscope.papers.models.nano import Nano
from attnscope.papers.trials.explaining_away import (
    clustering,
    disliked,
    explained_away,
    explained_away_by_queries,
    key_mass,
    least_masses,
    lifted,
    mass_of_disliked_key,
    pattern_of,
)
from attnscope.papers.trials.model_patterns import model_patterns
from attnscope.papers.trials.trained_alike import Shape, Training, task_of

TINY = replace(
    doubly_normalised2020.presets["quick"],
    tokens=8,
    trained=None,
    points=12,
    steps=2,
    shape=Shape(layers=1, width=8, data=(12, 4)),
    training=Training(steps=2, batch=4),
)
NOT_RUN = {"trained_softmax_explains_away"}  # no trained model


def test_every_key_and_every_step_is_drawn() -> None:
    found = doubly_normalised2020.run(TINY, (0,), UnsavedSession())
    by_name = {figure.name: figure for figure in found.figures}
    assert {row.x for row in by_name["masses"].rows} == set(range(1, TINY.tokens + 1))
    assert {row.x for row in by_name["clusters"].rows} == set(range(TINY.steps + 1))


def test_equal_scores_give_every_key_the_same() -> None:
    zero = torch.zeros(1, 1, 5, 3, dtype=torch.float64)
    for kind in ("softmax", "doubly_normalised"):
        torch.testing.assert_close(
            key_mass(pattern_of(kind, zero, zero, 1.0)), torch.ones(1, 1, 5, dtype=torch.float64)
        )


def test_the_bound_holds_where_softmax_breaks_it() -> None:
    least = least_masses(16, 8, 0, (1.0, 50.0))
    assert least["doubly_normalised"] >= 1
    assert least["softmax"] < 1e-20


def test_disliked_key_is_lower_by_the_requested_amount() -> None:
    query, key = disliked(8, 4, 0, by=30.0)
    logits = (query @ key.mT)[0, 0]
    others = query[..., 1:] @ key[..., 1:].mT
    torch.testing.assert_close(logits[:, 4], others[0, 0, :, 4] - 30.0)


def test_a_step_is_soft_clustering() -> None:
    """Responsibilities of centres for points by Gaussians, then means of points."""
    rng = torch.Generator().manual_seed(0)
    centres, points = torch.randn(2, 6, 2, generator=rng, dtype=torch.float64)
    rows = pattern_of("doubly_normalised", lifted(centres, key=False), lifted(points, key=True), 1 / 0.7**2)[0, 0]
    gaussian = torch.exp(-torch.cdist(centres, points).square() / (2 * 0.7**2))
    responsible = gaussian / gaussian.sum(0, keepdim=True)
    torch.testing.assert_close(rows @ points, (responsible / responsible.sum(1, keepdim=True)) @ points)


@pytest.mark.parametrize("kind", ["softmax", "doubly_normalised"])
def test_clusters_that_have_centres_keep_them(kind: str) -> None:
    far = clustering(kind, 30, 0.7, 3, 0)
    assert far[0][2] > 3
    assert max(far[-1][:2]) < 0.5


def test_unattended_key_is_counted_and_uniform_attention_loses_no_key() -> None:
    past = torch.ones(2, 1, 4, 4, dtype=torch.float64).tril()
    assert explained_away(past / past.sum(-1, keepdim=True)) == 0
    lost = torch.full((1, 1, 4, 4), (1 - 1e-9) / 3, dtype=torch.float64)
    lost[..., 2] = 1e-9
    assert explained_away(lost) == 0.25


def test_a_key_that_few_queries_see_is_not_counted() -> None:
    """Causal, four keys: the last is seen by one query of four. Where all look at the first, two of three are lost."""
    past = torch.zeros(1, 1, 4, 4, dtype=torch.float64)
    past[..., 0] = 1.0
    past += 1e-9 * torch.ones(4, 4, dtype=torch.float64).tril()
    assert explained_away(past) == pytest.approx(2 / 3)


def test_mass_is_that_of_the_disliked_key() -> None:
    """The mass is not the smallest one: another key has less, and a dislike that all queries share cancels."""
    query, key = disliked(16, 8, 0)
    masses = key_mass(pattern_of("doubly_normalised", query, key, 1.0))[0, 0]
    mass = mass_of_disliked_key("doubly_normalised", 16, 8, 0)
    assert mass == float(masses[8]) > float(masses.min())
    assert mass == pytest.approx(mass_of_disliked_key("doubly_normalised", 16, 8, 0, by=0.0), rel=1e-9)
    assert mass_of_disliked_key("softmax", 16, 8, 0) < 1e-60


def test_uniform_heads_explain_nothing_away() -> None:
    task, config = task_of("sort", Shape(layers=1, width=8, data=(6, 4)), 0)
    model = Nano(config, 0)
    torch.nn.init.zeros_(model.blocks[0].attention.query.weight)  # type: ignore[union-attr, arg-type]
    assert explained_away_by_queries(model, task) == {"explained_away": 0.0}
    assert not any(part._forward_hooks for part in model.modules())


def test_patterns_of_the_embedded_model_sum_to_one() -> None:
    patterns = next(model_patterns("pocket", samples=1, max_tokens=12))
    torch.testing.assert_close(patterns.sum(-1), torch.ones(patterns.shape[:-1], dtype=patterns.dtype))
    assert not patterns.triu(1).any()
