"""Hand-built lookups (arXiv:2602.01763), against looking things up; memories against the loops that they stand for."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import attnscope
from attnscope.core.errors import RefusalError
from attnscope.matrix.linear_attention import delta_memory, sum_memory
from attnscope.papers.models.composers import composer, digits, hybrid, shortcut, wide, window
from attnscope.papers.models.nano import Config, Nano
from attnscope.papers.models.tasks import Composition, composed


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_answers_equal_a_loop() -> None:
    asked = Composition(3, 7, 5).draw(4, rng())
    for row in range(4):
        for place in range(5):
            now = int(asked.queries[row, place])
            for fold in range(3):
                now = int(asked.tables[row, fold, now])
                assert now == int(asked.answers[row, place, fold])
    assert torch.equal(composed(asked.tables, asked.queries), asked.answers)


@pytest.mark.parametrize(("folds", "arguments"), [(1, 2), (2, 5), (3, 16), (8, 33)])
def test_as_many_lookups_as_functions_are_exact(folds: int, arguments: int) -> None:
    task = Composition(folds, arguments, 20)
    asked = task.draw(2, rng(1))
    with torch.no_grad():
        said = composer(task)(vectors=task.vectors(asked))[:, -20:]
    assert torch.equal(said.argmax(-1), asked.answers[..., -1])
    # What the last register holds is the code itself, so that the answer's logit is the number of digits.
    wanted = digits(arguments) @ digits(arguments).T
    torch.testing.assert_close(said, wanted[asked.answers[..., -1]], atol=1e-4, rtol=0)


@pytest.mark.parametrize("folds", [1, 2, 4, 8])
def test_looking_ahead_needs_the_logarithm_of_the_layers(folds: int) -> None:
    task = Composition(folds, 9, 6)
    asked = task.draw(2, rng(2))
    model = shortcut(task)
    assert len(model.blocks) == folds.bit_length()
    with torch.no_grad():
        assert torch.equal(model(vectors=task.vectors(asked))[:, -6:].argmax(-1), asked.answers[..., -1])


def test_lookups_that_are_missing_leave_an_earlier_answer() -> None:
    task = Composition(3, 12, 10)
    asked = task.draw(2, rng(3))
    with torch.no_grad():
        said = composer(task, lookups=2)(vectors=task.vectors(asked))[:, -10:].argmax(-1)
    assert torch.equal(said, asked.answers[..., 1])


def test_attention_of_a_lookup_can_be_scanned() -> None:
    """One layer and one head for each function."""
    task = Composition(2, 8, 16)
    asked = task.draw(1, rng(4))
    survey = attnscope.scan(composer(task), [{"vectors": task.vectors(asked)}], measures=("entropy",))
    assert survey.values("entropy").shape == (2, 1)
    assert survey.provenance["corpus"]["tokens"] == 32  # 16 entries and 16 queries, given as vectors
    # In layer 2 nobody but the 16 queries sees f_2 whole and has something to ask: theirs is 0, so that the mean over
    # the 32 tokens is at most half of what 16 entries that see no more than 16 tokens can have, ln 16.
    assert float(survey.values("entropy")[1, 0]) <= 0.5 * math.log(16) + 1e-4


def test_memories_equal_their_loops() -> None:
    query, key, value = (torch.randn(2, 9, 4, generator=rng(seed), dtype=torch.float64) for seed in range(3))
    key = F.normalize(key, dim=-1)
    key[:, 3] *= 0.5
    key[:, 5] = 0.0
    past = torch.ones(9, 9, dtype=torch.bool).tril()
    total, replaced = torch.zeros(2, 4, 4, dtype=torch.float64), torch.zeros(2, 4, 4, dtype=torch.float64)
    sums, deltas = [], []
    for place in range(9):
        k, v = key[:, place, :, None], value[:, place, :, None]
        total = total + v @ k.mT
        replaced = replaced + (v - replaced @ k) @ k.mT
        sums.append((total @ query[:, place, :, None])[..., 0])
        deltas.append((replaced @ query[:, place, :, None])[..., 0])
    # Nine steps of products of numbers near 1, in float64.
    torch.testing.assert_close(sum_memory(query, key, value, past), torch.stack(sums, 1), atol=1e-12, rtol=0)
    torch.testing.assert_close(delta_memory(query, key, value, past), torch.stack(deltas, 1), atol=1e-12, rtol=0)


def test_window_limits_visible_tokens() -> None:
    query, key, value = (torch.randn(1, 1, 6, 3, generator=rng(seed)) for seed in range(3))
    past = torch.ones(6, 6, dtype=torch.bool).tril()[None, None]
    said = window(1)(query, key, value, past, 1.0)
    torch.testing.assert_close(said, value)
    wide_enough = window(6)(query, key, value, past, 1.0)
    torch.testing.assert_close(wide_enough, F.scaled_dot_product_attention(query, key, value, past, scale=1.0))


def test_impossible_models_are_refused() -> None:
    task = Composition(3, 4)
    with pytest.raises(RefusalError, match="power of 2"):
        shortcut(task)
    with pytest.raises(RefusalError, match="1 to 3 lookups"):
        composer(task, lookups=4)
    with pytest.raises(RefusalError, match="4 keys and 3 kinds"):
        wide(task, torch.eye(4), ("full",))
    with pytest.raises(RefusalError, match="2 symbols"):
        Composition(1, 1)
    model = Nano(Config(width=4, heads=1, layers=1, inputs=2, out=2, causal=True))
    with pytest.raises(RefusalError, match="no kind of block called"):
        hybrid(model, ("quick",))
    with pytest.raises(RefusalError, match="one kind per block"):
        hybrid(model, ("full", "full"))
    with pytest.raises(RefusalError, match="causal=True"):
        hybrid(Nano(Config(width=4, heads=1, layers=1, inputs=2, out=2)), ("delta",))
