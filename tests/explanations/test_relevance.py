"""Relevance without maps: against the paper's rules on maps that models write out, and cases solved by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attnscope.explanations.relevance import relevance
from attnscope.matrix.attention_call import AttentionCall
from attnscope.matrix.scores import Scores
from tests.explanations.runs import captured, eager_maps

# Soft-capping (Gemma2), sinks and windows (gpt_oss), grouped heads (Llama), position bias (T5, Bloom), a softmax of
# their own (MPNet, GPT-J).
ONE_STACK = ("BERT", "GPT-2", "Llama", "Mistral", "Gemma2", "gpt_oss", "MPNet", "GPT-J", "Bloom")
TWO_STACKS = ("T5", "BART")


def abar(pattern: Tensor, gradient: Tensor) -> Tensor:
    return (pattern * gradient).clamp_min(0).mean(0).double()


def normalised(R: Tensor) -> Tensor:
    """Rbar = I + rownorm(R - I), where a row of zeros stays one (equations 8 and 9)."""
    own = torch.eye(len(R), dtype=R.dtype)
    sums = (R - own).sum(-1, keepdim=True)
    return own + torch.where(sums > 0, (R - own) / sums.where(sums > 0, torch.ones_like(sums)), 0.0)


def assert_near(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """Two kernels compute one model: each entry passes through a few hundred roundings on its way through two layers,
    and products of maps add no cancellation, since all terms are 0 or more. A few thousand units of the largest entry,
    since
    gradients themselves are differences."""
    allowed = 4e3 * torch.finfo(dtype).eps * float(expected.abs().max())
    assert float((found.double() - expected).abs().max()) <= allowed
    assert float(expected.max()) > 0


@pytest.mark.parametrize("name", ONE_STACK)
def test_it_equals_the_rule_on_written_out_maps(name: str) -> None:
    computed = torch.float32 if name == "gpt_oss" else torch.float64  # whose experts know float32 only
    dtype = (
        torch.float32 if name in ("Llama", "Mistral", "Gemma2", "gpt_oss") else computed
    )  # written out, softmax is in float32
    run, start = captured(name, computed)
    maps, output = eager_maps(name, computed)
    tokens = len(next(iter(run.embedding.values())))
    R = torch.eye(tokens, dtype=torch.float64)
    for _, pattern, gradient in maps:
        R = R + abar(pattern, gradient) @ R
    assert_near(run.output, output.double(), dtype)
    assert list(start["model"]) == [0.0] * (tokens - 1) + [1.0]
    found = relevance(calls=run.calls, start=start)["model"]
    assert_near(found, R[-1] - torch.eye(tokens)[-1], dtype)


@pytest.mark.parametrize("name", TWO_STACKS)
def test_encoder_and_decoder_follow_all_equations(name: str) -> None:
    run, start = captured(name, torch.float64)
    maps, _ = eager_maps(name, torch.float64)
    of = {kind: [abar(p, g) for k, p, g in maps if k == kind] for kind in ("encoder", "decoder", "cross")}
    source, target = len(run.embedding["encoder"]), len(run.embedding["decoder"])
    ee, dd = torch.eye(source, dtype=torch.float64), torch.eye(target, dtype=torch.float64)
    de = torch.zeros(target, source, dtype=torch.float64)
    for one in of["encoder"]:
        ee = ee + one @ ee
    for own, cross in zip(of["decoder"], of["cross"], strict=True):
        de = de + own @ de
        dd = dd + own @ dd
        de = de + normalised(dd).T @ cross @ normalised(ee)
    found = relevance(calls=run.calls, start=start)
    assert_near(found["decoder"], dd[-1] - torch.eye(target)[-1], torch.float64)
    assert_near(found["encoder"], de[-1], torch.float64)


def by_hand(
    gradient: Tensor, stack: str = "model", keys: str = "model", rows: int = 3, columns: int = 3
) -> AttentionCall:
    """Uniform attention, one head, values that are unit vectors: dA is the gradient itself."""
    scores = Scores(torch.zeros(1, 1, rows, 1).double(), torch.zeros(1, 1, columns, 1).double(), 1.0)
    value = torch.eye(columns, dtype=torch.float64)[None, None]
    return AttentionCall(stack, keys, 0, scores, value, gradient.double()[None, :, None])


def row(*numbers: float) -> dict[str, Tensor]:
    return {"model": torch.tensor(numbers, dtype=torch.float64)}


def test_one_layer_is_the_identity_and_abar() -> None:
    gradient = torch.tensor([[3.0, -3.0, 6.0], [0.0, 9.0, 0.0], [-1.0, 0.0, 3.0]])
    for place, expected in enumerate([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0], [0.0, 0.0, 1.0]]):
        start = row(*torch.eye(3)[place].tolist())
        found = relevance(calls=[by_hand(gradient)], start=start)["model"]
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_two_layers_multiply() -> None:
    """R = (I + A2)(I + A1): the last row of it, less the identity, by hand."""
    first, second = torch.tensor([[0.0, 0, 0], [3, 0, 0], [0, 0, 0]]), torch.tensor([[0.0, 0, 0], [0, 0, 0], [0, 6, 0]])
    found = relevance(calls=[by_hand(first), by_hand(second)], start=row(0, 0, 1))["model"]
    assert found.tolist() == pytest.approx([2.0, 2.0, 0.0])


def test_nothing_is_relevant_where_gradients_speak_against() -> None:
    calls = [by_hand(-torch.rand(3, 3)) for _ in range(3)]
    assert relevance(calls=calls, start=row(0, 0, 1))["model"].tolist() == [0.0, 0.0, 0.0]


def test_it_is_never_negative_and_a_zero_row_is_no_nan() -> None:
    rng = torch.Generator().manual_seed(0)
    own = [by_hand(torch.randn(3, 3, generator=rng), "decoder", "decoder") for _ in range(2)]
    own[0].gradient.zero_()  # R^dd is the identity below the first cross-attention: its row sums are 0
    cross = [by_hand(torch.randn(3, 2, generator=rng), "decoder", "encoder", 3, 2) for _ in range(2)]
    encoder = [by_hand(-torch.rand(2, 2, generator=rng), "encoder", "encoder", 2, 2)]  # and so is R^ee
    calls: list[Any] = [*encoder, own[0], cross[0], own[1], cross[1]]
    found = relevance(calls=calls, start={"decoder": row(0, 0, 1)["model"]})
    assert set(found) == {"encoder", "decoder"}
    for numbers in found.values():
        assert bool((numbers >= 0).all())
        assert bool(numbers.isfinite().all())
    assert float(found["encoder"].sum()) > 0
