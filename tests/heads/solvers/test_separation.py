"""The solver of largest margins against scipy's, the conditions of optimality, and infeasible rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize

from attnscope.heads.pattern import Pattern
from attnscope.heads.solvers.keys import gaussian, torus
from attnscope.heads.solvers.largest_margin import check, least_distance, repair
from attnscope.heads.solvers.separation import STATUSES, separated

MARGIN = 9.0


def ragged(n: int, most: int, seed: int, causal: bool = False, n_keys: int | None = None) -> Pattern:
    """Rows of one to `most` keys at random places, with weights within a factor 4."""
    rng = np.random.default_rng(seed)
    n_keys = n_keys or n
    rows, columns = [], []
    for row in range(n):
        seen = min(row + 1, n_keys) if causal else n_keys
        chosen = rng.choice(seen, size=min(seen, int(rng.integers(1, most + 1))), replace=False)
        rows += [row] * len(chosen)
        columns += chosen.tolist()
    weights = rng.uniform(1, 4, len(rows))
    return Pattern.of(np.array(rows), np.array(columns), weights, n=n, n_keys=n_keys, causal=causal, normalise=True)


def row_program(pattern: Pattern, keys: np.ndarray, row: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """E, e, G, h of the row: E q = e, G q >= h, straight from the definition."""
    entries = slice(int(pattern.starts[row]), int(pattern.starts[row + 1]))
    support, logs = pattern.columns[entries], np.log(pattern.weights[entries])
    others = np.setdiff1d(np.arange(row + 1 if pattern.causal else pattern.n_keys), support)
    return (
        keys[support[1:]] - keys[support[0]],
        logs[1:] - logs[0],
        keys[support[0]] - keys[others],
        np.full(len(others), MARGIN + logs[0]),
    )


@pytest.mark.parametrize("causal", [False, True])
def test_objective_is_that_of_scipy(causal: bool) -> None:
    pattern, keys = ragged(24, 3, 0, causal), gaussian(24, 9, np.random.default_rng(1))
    solution = separated(pattern, keys, MARGIN, 1e6)
    assert solution.count("separated") == 24
    for row in range(0, 24, 2):
        E, e, G, h = row_program(pattern, keys, row)
        constraints = (
            [{"type": "ineq", "fun": lambda q, G=G, h=h: G @ q - h, "jac": lambda q, G=G: G}] if len(h) else []
        )
        if len(e):
            constraints.append({"type": "eq", "fun": lambda q, E=E, e=e: E @ q - e, "jac": lambda q, E=E: E})
        optimum = minimize(
            lambda q: q @ q,
            solution.queries[row] * 0.5 + 0.1,
            jac=lambda q: 2 * q,
            constraints=constraints,
            method="SLSQP",
            options={"maxiter": 500, "ftol": 1e-10},
        )
        assert optimum.success
        assert solution.queries[row] @ solution.queries[row] == pytest.approx(optimum.fun, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(("n", "width", "kind"), [(60, 20, gaussian), (60, 16, torus)])
def test_objective_is_that_of_non_negative_least_squares(n: int, width: int, kind: object) -> None:
    keys = kind(n, width, np.random.default_rng(0))  # type: ignore[operator]
    pattern = ragged(n, 4, 2)
    solution = separated(pattern, keys, MARGIN, 1e7)
    assert solution.count("separated") == n
    for row in range(0, n, 5):
        size = float(np.linalg.norm(solution.queries[row]))
        least = least_distance(pattern, keys, row, MARGIN, solution.base[row], size)
        assert least is not None
        assert np.linalg.norm(least[0]) == pytest.approx(size, rel=1e-6)


@given(seed=st.integers(0, 10_000), width=st.integers(4, 14), causal=st.booleans())
def test_solutions_meet_the_conditions_of_optimality(seed: int, width: int, causal: bool) -> None:
    pattern, keys = ragged(20, 3, seed, causal), gaussian(20, width, np.random.default_rng(seed))
    solution = separated(pattern, keys, MARGIN, 1e6)
    for row in np.flatnonzero(solution.status == STATUSES.index("separated")):
        E, e, G, h = row_program(pattern, keys, int(row))
        q = solution.queries[row]
        size = 1 + float(np.linalg.norm(q))
        np.testing.assert_allclose(E @ q, e, atol=1e-9 * size)  # primal: the ratios
        assert (G @ q - h >= -1e-7 * size).all()  # primal: the margins
        held = solution.active[row] >= 0
        u = solution.multipliers[row, held]
        assert (u >= -1e-9 * size).all()  # dual: multipliers are not negative
        normals = keys[pattern.columns[pattern.starts[row]]] - keys[solution.active[row, held]]
        np.testing.assert_allclose(normals @ q, np.broadcast_to(h[:1], len(u)), atol=1e-7 * size)  # complementary
        force = q - u @ normals  # stationary: what is left lies in the span of the equations
        rest = force - (np.linalg.pinv(E) @ E @ force if len(e) else 0)
        np.testing.assert_allclose(rest, 0, atol=1e-7 * size)


def feasible(pattern: Pattern, keys: np.ndarray, row: int) -> bool:
    """Return whether a linear program finds any query."""
    E, e, G, h = row_program(pattern, keys, row)
    equations = {"A_eq": E, "b_eq": e} if len(e) else {}
    found = linprog(np.zeros(keys.shape[1]), A_ub=-G, b_ub=-h, bounds=(None, None), method="highs", **equations)
    assert found.status in (0, 2)
    return bool(found.status == 0)


@pytest.mark.parametrize("width", [4, 5, 6])
def test_rows_called_inseparable_are_infeasible_for_a_linear_program_and_no_others(width: int) -> None:
    pattern, keys = ragged(40, 3, 5), gaussian(40, width, np.random.default_rng(0))
    solution = separated(pattern, keys, MARGIN, 1e9)
    verdict = solution.status == STATUSES.index("separated")
    assert (~verdict).sum() == solution.count("inseparable") > 0
    assert verdict.any()
    for row in range(40):
        assert feasible(pattern, keys, row) == verdict[row]


def test_a_key_inside_the_polytope_is_inseparable_and_its_neighbours_are_not() -> None:
    keys = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0], [0.1, 0.1]])
    pattern = Pattern.of(np.arange(5), np.arange(5), np.ones(5), n=5)
    solution = separated(pattern, keys, MARGIN, 1e6)
    assert [STATUSES[s] for s in solution.status] == ["separated"] * 4 + ["inseparable"]
    # By hand: 0.9 x - 0.1 y >= 9 from the inner key and x + y >= 9 from (0, -1) both bind.
    np.testing.assert_allclose(solution.queries[0], [9.9, -0.9], rtol=1e-9)


def test_a_row_that_needs_too_long_a_query_is_reported() -> None:
    pattern = Pattern.of(np.arange(64), np.arange(64), np.ones(64), n=64)
    circle = torus(64, 2, np.random.default_rng(0))
    needed = MARGIN / (1 - np.cos(2 * np.pi / 64))
    assert separated(pattern, circle, MARGIN, 0.9 * needed).count("too long") == 64
    whole = separated(pattern, circle, MARGIN, 1.1 * needed)
    assert whole.count("separated") == 64
    np.testing.assert_allclose(np.linalg.norm(whole.queries, axis=1), needed, rtol=1e-9)


def test_check_finds_a_wrong_solution_and_repair_corrects_it() -> None:
    pattern, keys = ragged(30, 3, 1), gaussian(30, 12, np.random.default_rng(1))
    solution = separated(pattern, keys, MARGIN, 1e6)
    gap, violation = check(solution, pattern, keys, MARGIN)
    assert gap.max() < 1e-9
    assert violation.max() < 1e-9
    right = solution.queries[7].copy()
    solution.queries[7] *= 0.9
    gap, violation = check(solution, pattern, keys, MARGIN)
    assert violation[7] > 0.01
    mended, repaired = repair(solution, pattern, keys, MARGIN)
    assert repaired == 1
    assert mended.count("separated") == 30
    np.testing.assert_allclose(mended.queries[7], right, rtol=1e-6, atol=1e-6)
