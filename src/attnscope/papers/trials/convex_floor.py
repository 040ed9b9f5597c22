"""Heads trained by gradient descent, compared with the optimum of their convex twin (arXiv:2205.08078)."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnscope.core.experiment import Session
from attnscope.heads.solvers.nuclear_norm import Problem, Solved, solve
from attnscope.papers.models.bilinear_heads import BilinearHeads, convex_twin, heads_of
from attnscope.papers.trials.clipped_networks import digits

EXACT = torch.float64
NOT_INSTALLED = "not installed"


def data(samples: int, tokens: int, width: int, answers: int, seed: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, tokens, width, generator=rng, dtype=EXACT)
    return x, torch.randn(samples, tokens, answers, generator=rng, dtype=EXACT)


def gates_of(gates: int, width: int, seed: int) -> Tensor | None:
    rng = torch.Generator().manual_seed(10_000 + seed)
    return torch.randn(gates, width, width, generator=rng, dtype=EXACT) if gates else None


def cost(model: BilinearHeads, x: Tensor, y: Tensor, beta: float) -> Tensor:
    answer: Tensor = model(x)
    return (answer - y).square().sum() / 2 + beta * model.penalty()


def descended(
    x: Tensor, y: Tensor, beta: float, gates: Tensor | None, heads: int, seed: int, steps: int, pooled: bool = False
) -> float:
    """Return the cost after Adam and L-BFGS from a random start. The problem is not convex: try several starts."""
    rng = torch.Generator().manual_seed(seed)
    width, groups = x.shape[-1], 1 if gates is None else len(gates)
    first = torch.randn(groups, heads, width, width, generator=rng, dtype=EXACT) / width
    second = torch.randn(groups, heads, width, y.shape[-1], generator=rng, dtype=EXACT) / width
    model = BilinearHeads(first, second, gates, pooled)
    adam = torch.optim.Adam(model.parameters(), lr=0.03)
    for step in range(steps):
        adam.param_groups[0]["lr"] = 0.03 * (1 - step / steps)
        adam.zero_grad()
        cost(model, x, y, beta).backward()  # type: ignore[no-untyped-call]
        adam.step()
    polish = torch.optim.LBFGS(model.parameters(), max_iter=steps // 4, line_search_fn="strong_wolfe", history_size=20)

    def closure() -> Tensor:
        polish.zero_grad()
        value = cost(model, x, y, beta)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    polish.step(closure)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        return float(cost(model, x, y, beta))


def written_down(
    solved: Solved, x: Tensor, y: Tensor, beta: float, gates: Tensor | None, pooled: bool = False
) -> float:
    """Return the cost of the heads made from the singular vectors of the optimum."""
    first, second = heads_of(solved.blocks, x.shape[-1])
    with torch.no_grad():
        return float(cost(BilinearHeads(first, second, gates, pooled), x, y, beta))


def oracle(problem: Problem) -> tuple[float | None, str]:
    """Return CVXPY's optimum and status; the optimum is None unless the status is `optimal`."""
    if importlib.util.find_spec("cvxpy") is None:
        return None, NOT_INSTALLED
    import cvxpy

    variables = [cvxpy.Variable(problem.shape[1:]) for _ in range(problem.shape[0])]
    flat = (problem.features.shape[-1], problem.answers.shape[-1])
    predicted = sum(
        features.numpy() @ cvxpy.reshape(variable, flat, order="C")
        for features, variable in zip(problem.features, variables, strict=True)
    )
    wrong = cvxpy.sum_squares(predicted - problem.answers.numpy()) / 2
    task = cvxpy.Problem(cvxpy.Minimize(wrong + problem.beta * sum(map(cvxpy.normNuc, variables))))
    try:
        task.solve(solver=cvxpy.CLARABEL)
    except cvxpy.SolverError as error:
        return None, f"failed: {error}"
    return (float(task.value) if task.status == cvxpy.OPTIMAL else None), task.status


def floor_and_heads(params: Any, gates: int, seed: int, session: Session) -> list[dict[str, Any]]:
    """Return rows of the optimum (ours, CVXPY's, as heads) and of what descent reaches with 1, 2, ... heads."""
    x, y = data(params.samples, params.tokens, params.width, params.answers, seed)
    fixed = gates_of(gates, params.width, seed)
    problem = convex_twin(x, y, params.beta, fixed)
    solved = solve(problem)
    kind = "gated" if gates else "linear"
    exact, status = oracle(problem)
    rows: list[dict[str, Any]] = [
        {
            "part": "floor",
            "kind": kind,
            "seed": seed,
            "objective": solved.objective,
            "gap": solved.gap / solved.objective,
            "rank": solved.rank,
            "largest_rank": int((torch.linalg.svdvals(solved.blocks) > 1e-6).sum(-1).max()),
            "cvxpy": None if exact is None else abs(exact / solved.objective - 1),
            "cvxpy_said": status,
            "written_down": abs(written_down(solved, x, y, params.beta, fixed) / solved.objective - 1),
        }
    ]
    for heads in params.heads:
        reached = []
        for start in range(params.starts):
            session.advance(f"{kind}, {heads} heads", start, params.starts)
            reached.append(descended(x, y, params.beta, fixed, heads, 100 * seed + start, params.descent))
        above = [cost / solved.objective - 1 for cost in reached]
        rows.append({"part": "heads", "kind": kind, "seed": seed, "heads": heads, "best": min(above), "all": above})
    return rows


def digits_floor(beta: float, accuracy: float, steps: int, heads_steps: int, seed: int) -> dict[str, Any]:
    """Fit digits as eight tokens (rows of pixels): heads, mean over tokens, squared error against one-hot labels."""
    images, labels = digits()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    cut = len(order) // 5
    held, used = order[:cut], order[cut:]
    x = (images - images[used].mean(0)).reshape(-1, 8, 8)
    y = (F.one_hot(labels, 10).to(EXACT) - 0.1)[:, None]
    solved = solve(convex_twin(x[used], y[used], beta, pooled=True), accuracy, steps)
    unseen = convex_twin(x[held], y[held], beta, pooled=True).predicted(solved.blocks)
    reached = descended(x[used], y[used], beta, None, solved.rank, seed, heads_steps, pooled=True)
    return {
        "part": "digits",
        "seed": seed,
        "objective": solved.objective,
        "gap": solved.gap / solved.objective,
        "heads": solved.rank,
        "right": float((unseen.argmax(-1) == labels[held]).double().mean()),
        "majority": float(labels[held].bincount().max()) / len(held),
        "descent": reached / solved.objective - 1,
        "written_down": abs(written_down(solved, x[used], y[used], beta, None, pooled=True) / solved.objective - 1),
    }
