"""Heads without softmax, sum_j X W1_j X^T X W2_j: their convex twin, and gradient descent on them (arXiv:2205.08078).

Let X be the tokens of a sequence, with d coordinates, c outputs and G = X^T X. Then, for token s and output b,

    (X W1 G W2)[s, b] = sum_{a,k,l}  X[s, a] G[k, l] W1[a, k] W2[l, b],

which is linear in Z = vec(W1) vec(W2)^T, of shape d^2 x dc. The Z of several heads add up, and the smallest penalty
beta/2 (||W1||^2 + ||W2||^2), summed over heads, of all ways to split Z into heads is beta times the nuclear norm
||Z||_*. So a convex problem in Z has an optimum that is a lower bound for training any number of heads with weight
decay; it is reached with as many heads as Z has rank, which `heads_of` returns.

With a fixed 0/1 gate D (1 where a random head is not negative, as in a ReLU), the head (D * X W1 X^T) X W2 has the same
form with G_s[k, l] = sum_t D[s, t] X[t, k] X[t, l] instead of G, and there is one Z for each gate.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.core.experiment import Session
from attnscope.heads.solvers.nuclear_norm import Problem, Solved, solve
from attnscope.papers.trials.clipped_networks import digits

EXACT = torch.float64
NOT_INSTALLED = "not installed"
Tokens = Float[Tensor, "sample token width"]


class BilinearHeads(nn.Module):
    """The heads. `gates` has a fixed matrix H for each group of heads, whose gate is 1 where X H X^T >= 0."""

    gates: Tensor | None

    def __init__(
        self,
        first: Float[Tensor, "gate head width width"],
        second: Float[Tensor, "gate head width answer"],
        gates: Float[Tensor, "gate width width"] | None = None,
        pooled: bool = False,
    ) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(first), nn.Parameter(second)
        self.register_buffer("gates", gates)
        self.pooled = pooled

    def forward(self, x: Tokens) -> Float[Tensor, "sample answered answer"]:
        scores = torch.einsum("nsa,ghak,ntk->nghst", x, self.first, x)
        if self.gates is not None:
            scores = scores * opened(x, self.gates).transpose(0, 1)[:, :, None]
        mixed = torch.einsum("nghst,ntl,ghlb->nsb", scores, x, self.second)
        return mixed.mean(1, keepdim=True) if self.pooled else mixed

    def penalty(self) -> Tensor:
        return (self.first.square().sum() + self.second.square().sum()) / 2


def opened(x: Tokens, gates: Float[Tensor, "gate width width"] | None) -> Float[Tensor, "gate sample token token"]:
    """Return each gate: 1 where its head is not negative, else 0. Without gates, return 1 everywhere."""
    if gates is None:
        return torch.ones(1, len(x), x.shape[1], x.shape[1], dtype=x.dtype)
    return (torch.einsum("nsa,gak,ntk->gnst", x, gates, x) >= 0).to(x.dtype)


def convex_twin(
    x: Tokens,
    answers: Float[Tensor, "sample answered answer"],
    beta: float,
    gates: Float[Tensor, "gate width width"] | None = None,
    pooled: bool = False,
) -> Problem:
    """Return the convex problem whose optimum is a lower bound for any number of heads, on these data and penalty."""
    inner = torch.einsum("gnst,ntk,ntl->gnskl", opened(x, gates), x, x)
    features = torch.einsum("nsa,gnskl->gnsakl", x, inner)  # [gate, sample, token, a, k, l]
    if pooled:
        features = features.mean(2, keepdim=True)
    width = x.shape[-1]
    return Problem(features.flatten(1, 2).flatten(2), answers.flatten(0, 1), width * width, beta)


def heads_of(
    blocks: Float[Tensor, "gate row column"], width: int
) -> tuple[Float[Tensor, "gate head width width"], Float[Tensor, "gate head width answer"]]:
    """Turn Z = sum_j s_j u_j v_j^T (its SVD) into heads W1 = sqrt(s_j) u_j, W2 = sqrt(s_j) v_j; drop tiny s_j."""
    left, values, right = torch.linalg.svd(blocks, full_matrices=False)
    count = max(1, int((values > 1e-6 * values.max()).sum(-1).max()))
    root = values[:, :count].sqrt()
    first = (left[..., :count] * root[:, None]).mT.reshape(len(blocks), count, width, width)
    second = (right[:, :count] * root[..., None]).reshape(len(blocks), count, width, -1)
    return first, second


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
    """Return the cost after Adam and L-BFGS from one random start. The problem is not convex, so use several starts."""
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
    """Return the optimum that CVXPY finds, or None if it did not reach optimality, and its status."""
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
    """Return a row with the optimum (ours, CVXPY's, as heads), and rows of descent with 1, 2, ... heads."""
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
    """Fit digits, with rows of pixels as tokens, by heads averaged over tokens and squared error to one-hot labels."""
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
