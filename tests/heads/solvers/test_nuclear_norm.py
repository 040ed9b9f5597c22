"""The proximal solver: its certificate against CVXPY, closed forms, and points that are not optimal."""

from __future__ import annotations

import pytest
import torch

from attnscope.core.errors import RefusalError
from attnscope.heads.solvers.nuclear_norm import Problem, shrunk, solve
from attnscope.papers.trials.convex_floor import convex_twin, data, gates_of, oracle

EXACT = torch.float64


@pytest.mark.parametrize("gates", [0, 2])
def test_solve_finds_the_optimum_of_cvxpy(gates: int) -> None:
    x, y = data(6, 3, 2, 2, seed=1)
    problem = convex_twin(x, y, 0.7, gates_of(gates, 2, 1))
    found = solve(problem)
    assert found.gap <= 1e-8 * found.objective
    exact, said = oracle(problem)
    assert said == "optimal"
    # Both solvers are accurate to about 1e-8 of the optimum; the comparison requires 1e-5.
    assert found.objective == pytest.approx(exact, rel=1e-5)


def test_where_the_map_is_the_identity_the_optimum_is_known() -> None:
    """min 1/2 |Z - Y|^2 + beta |Z|_*: Y with its singular values smaller by beta."""
    answers = torch.randn(6, 2, generator=torch.Generator().manual_seed(0), dtype=EXACT)
    problem = Problem(torch.eye(6, dtype=EXACT)[None], answers, rows=3, beta=0.5)  # Z is 3 x 4, read as 6 x 2
    wanted = shrunk(answers.reshape(1, 3, 4), 0.5)
    torch.testing.assert_close(solve(problem).blocks, wanted, atol=1e-7, rtol=0)


def test_the_bound_lies_below_every_objective() -> None:
    x, y = data(5, 3, 2, 2, seed=2)
    problem = convex_twin(x, y, 0.5, gates_of(2, 2, 2))
    rng = torch.Generator().manual_seed(0)
    points = [torch.randn(problem.shape, generator=rng, dtype=EXACT) * size for size in (0.0, 0.1, 1.0, 3.0)]
    points.append(solve(problem).blocks)
    lowest = min(problem.objective(point) for point in points)
    # Weak duality holds for every pair; rounding of a sum of some ten terms.
    assert max(problem.bound(point) for point in points) <= lowest * (1 + 1e-12)


def test_a_large_penalty_gives_zero_blocks() -> None:
    x, y = data(5, 3, 2, 2, seed=3)
    steepest = float(torch.linalg.matrix_norm(convex_twin(x, y, 1.0).adjoint(y.flatten(0, 1)), ord=2).max())
    found = solve(convex_twin(x, y, 1.01 * steepest))
    assert found.rank == 0
    assert found.objective == pytest.approx(float(y.square().sum() / 2), rel=1e-12)
    with pytest.raises(RefusalError, match="give a beta above 0"):
        convex_twin(x, y, 0.0)
