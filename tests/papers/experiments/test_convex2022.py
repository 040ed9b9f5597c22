"""`convex2022`, small enough to run in every test; heads without softmax against loops and their convex twin."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from attnscope.core.experiment import UnsavedSession
from attnscope.papers.experiments.convex2022 import convex2022
from attnscope.papers.trials.convex_floor import BilinearHeads, convex_twin, data, gates_of, heads_of

TINY = replace(
    convex2022.presets["quick"],
    samples=4,
    tokens=2,
    width=2,
    gates=2,
    heads=(1, 4),
    starts=1,
    descent=8,
    digits_beta=30.0,
    digits_accuracy=0.1,
    digits_steps=50,
    digits_descent=2,
)


def test_unsolved_cvxpy_problem_is_reported_and_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnscope.papers.trials.convex_floor.oracle", lambda problem: (None, "optimal_inaccurate"))
    monkeypatch.setattr("attnscope.papers.experiments.convex2022.digits_at_hand", lambda: False)
    found = convex2022.run(TINY, (0,), UnsavedSession())
    verdicts = {claim.name: claim.verdict for claim in convex2022.judged(found)}
    assert verdicts["optimum_is_cvxpys"] == "not run"
    said = [one for one in found.remarks if "CVXPY did not solve" in one]
    assert [("linear heads, seed 0" in one, "optimal_inaccurate" in one) for one in said] == [
        (True, True),
        (False, True),
    ]


def test_without_the_extra_its_claims_are_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = convex2022.run(TINY, (0,), UnsavedSession())
    verdicts = {claim.name: claim.verdict for claim in convex2022.judged(found)}
    assert verdicts["optimum_is_cvxpys"] == verdicts["certified_on_digits"] == "not run"
    assert "attnscope[convex]" in found.remarks[-1]


EXACT = torch.float64


def some_heads(gates: int, pooled: bool) -> tuple[BilinearHeads, torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    x, y = data(3, 4, 3, 2, seed=0)
    groups = gates or 1
    first = torch.randn(groups, 2, 3, 3, generator=rng, dtype=EXACT)
    second = torch.randn(groups, 2, 3, 2, generator=rng, dtype=EXACT)
    return BilinearHeads(first, second, gates_of(gates, 3, 0), pooled), x, y


@pytest.mark.parametrize("gates", [0, 2])
def test_heads_equal_loops(gates: int) -> None:
    model, x, _ = some_heads(gates, False)
    for tokens, found in zip(x, model(x), strict=True):
        wanted = torch.zeros(4, 2, dtype=EXACT)
        for group in range(gates or 1):
            for head in range(2):
                scores = tokens @ model.first[group, head] @ tokens.T
                if model.gates is not None:
                    scores = scores * (tokens @ model.gates[group] @ tokens.T >= 0)
                wanted = wanted + scores @ tokens @ model.second[group, head]
        torch.testing.assert_close(found, wanted, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("gates", [0, 2])
def test_convex_twin_predicts_the_heads(gates: int, pooled: bool) -> None:
    model, x, y = some_heads(gates, pooled)
    answers = y.mean(1, keepdim=True) if pooled else y
    twin = convex_twin(x, answers, 1.0, model.gates, pooled)
    with torch.no_grad():
        blocks = torch.einsum("ghr,ghc->grc", model.first.flatten(2), model.second.flatten(2))
        torch.testing.assert_close(twin.predicted(blocks), model(x).flatten(0, 1), atol=1e-11, rtol=1e-11)
        # However heads are chosen, they cost at least the nuclear norm; split by singular vectors, exactly that.
        norm = float(torch.linalg.svdvals(blocks).sum())
        assert float(model.penalty()) >= norm
        split = BilinearHeads(*heads_of(blocks, 3), model.gates, pooled)
        assert float(split.penalty()) == pytest.approx(norm, rel=1e-10)
        torch.testing.assert_close(split(x), model(x), atol=1e-10, rtol=1e-10)
