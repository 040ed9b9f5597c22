"""Many rows at once against the exact solver, row by row."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from attnscope.heads.generate import union_of_permutations
from attnscope.heads.head import Rows
from attnscope.heads.pattern import Pattern
from attnscope.heads.solvers import many_rows
from attnscope.heads.solvers.keys import gaussian, torus
from attnscope.heads.solvers.many_rows import VIOLATION, directions, equations, lifted
from attnscope.heads.solvers.separation import STATUSES, separated

MARGIN = 9.0


def ragged(n: int, most: int, seed: int, causal: bool) -> Pattern:
    rng = np.random.default_rng(seed)
    rows, columns = [], []
    for row in range(n):
        seen = row + 1 if causal else n
        chosen = rng.choice(seen, size=min(seen, int(rng.integers(1, most + 1))), replace=False)
        rows += [row] * len(chosen)
        columns += chosen.tolist()
    return Pattern.of(
        np.array(rows), np.array(columns), rng.uniform(1, 4, len(rows)), n=n, causal=causal, normalise=True
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("make", "width"), [(gaussian, 14), (torus, 12)])
def test_length_is_within_the_tolerance_of_the_exact_one(
    make: Callable[[int, int, np.random.Generator], np.ndarray], width: int, causal: bool
) -> None:
    keys = make(96, width, np.random.default_rng(0))
    patterns = [ragged(96, 3, seed, causal) for seed in range(3)]
    rows, exact = Rows.of(patterns), torch.from_numpy(keys)
    direction, done = directions(exact, rows, MARGIN)
    queries = lifted(equations(exact, rows), direction, exact, rows, MARGIN)
    slow = [separated(pattern, keys, MARGIN, 1e9) for pattern in patterns]
    solved = np.concatenate([solution.status for solution in slow]) == STATUSES.index("separated")
    assert solved.sum() > 200
    assert (done.numpy() == solved).all()
    base = np.concatenate([solution.base for solution in slow])
    best = np.linalg.norm(np.concatenate([solution.queries for solution in slow]) - base, axis=1)
    length = np.linalg.norm(queries.numpy() - base, axis=1)
    assert (length[solved] <= best[solved] / (1 - VIOLATION) * (1 + 1e-6) + 1e-9).all()
    assert (length[solved] >= best[solved] * (1 - 1e-6) - 1e-9).all()  # rows that see no zero do not move


def test_lifted_queries_have_ratios_and_margin() -> None:
    keys = torch.from_numpy(torus(64, 12, np.random.default_rng(0)))
    pattern = ragged(64, 4, 5, causal=False)
    rows = Rows.of([pattern])
    queries = lifted(equations(keys, rows), directions(keys, rows, MARGIN)[0], keys, rows, MARGIN)
    logits = (queries @ keys.T).numpy()
    for row in range(pattern.n):
        entries = slice(int(pattern.starts[row]), int(pattern.starts[row + 1]))
        level = logits[row, pattern.columns[entries]] - np.log(pattern.weights[entries])
        np.testing.assert_allclose(level, level[0], atol=1e-8 * np.abs(logits[row]).max())
        assert np.delete(logits[row], pattern.columns[entries]).max() <= level[0] - MARGIN + 1e-6


@pytest.mark.parametrize("violation", [0.3, 1e-2, 1e-5])
def test_a_small_tolerance_gives_the_exact_solution(violation: float) -> None:
    """z* is the point nearest to 0 of a convex set that holds z: |z - z*|^2 <= |z|^2 - |z*|^2; |z| (1 - v) <= |z*|."""
    keys = torus(64, 8, np.random.default_rng(1))
    pattern = union_of_permutations(64, 2, seed=3)
    slow = separated(pattern, keys, MARGIN, 1e9)
    rows, exact = Rows.of([pattern]), torch.from_numpy(keys)
    direction, done = directions(exact, rows, MARGIN, violation)
    assert done.all()
    queries = lifted(equations(exact, rows), direction, exact, rows, MARGIN).numpy()
    off = np.linalg.norm(queries - slow.queries, axis=1) / np.linalg.norm(slow.queries - slow.base, axis=1)
    assert off.max() <= ((1 - violation) ** -2 - 1) ** 0.5 * (1 + 1e-3)


def test_number_of_lanes_does_not_change_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = torch.from_numpy(torus(64, 8, np.random.default_rng(1)))
    rows = Rows.of([union_of_permutations(64, 2, seed=seed) for seed in range(4)])
    together, _ = directions(keys, rows, MARGIN)
    monkeypatch.setattr(many_rows, "_LANES", 7)
    apart, done = directions(keys, rows, MARGIN)
    assert done.all()
    torch.testing.assert_close(apart, together, rtol=1e-6, atol=1e-6)


def test_rows_that_are_no_face_are_not_done() -> None:
    keys = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0], [0.0, 0.0]], dtype=torch.float64)
    everyone = Pattern.of(np.arange(5), np.arange(5), np.ones(5), n=5)
    assert directions(keys, Rows.of([everyone]), MARGIN)[1].tolist() == [True, True, True, True, False]
