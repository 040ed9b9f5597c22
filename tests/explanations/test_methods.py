"""Gradients, occlusion, random scores, raw attention, rollout and value zeroing against slow references."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attnscope.explanations import occlusion as module
from attnscope.explanations.gradient_input import gradient_input
from attnscope.explanations.integrated_gradients import MOST, NEAR, PIECES, POINTS, integrated_gradients
from attnscope.explanations.occlusion import occlusion
from attnscope.explanations.random import random
from attnscope.explanations.raw_attention import raw_attention
from attnscope.explanations.rollout import rollout
from attnscope.explanations.value_zeroing import value_zeroing
from attnscope.hf.tapping.capture import asked_with
from attnscope.hf.tapping.zeroing import moved_by_zeroing
from tests.explanations.runs import batch_of, captured, eager_maps, model_of, number, places_of


def test_gradient_input_of_a_linear_answer() -> None:
    vectors, weights = torch.tensor([[1.0, 2.0], [3.0, -1.0]]), torch.tensor([[0.5, 1.0], [2.0, 4.0]])
    found = gradient_input(embedding={"model": vectors}, embedding_gradient={"model": weights})
    assert found["model"].tolist() == [2.5, 2.0]


def test_gradient_input_equals_the_derivative_along_each_token() -> None:
    """Compare with central differences, for an embedding of one token scaled by 1 + h and 1 - h."""
    run, _ = captured("GPT-2", torch.float64)
    model, batch = model_of("GPT-2", torch.float64), batch_of("GPT-2")
    _, places = places_of("GPT-2")
    found = gradient_input(embedding=run.embedding, embedding_gradient=run.embedding_gradient)["model"]
    own, h = run.embedding["model"], 1e-5
    longer, shorter = (own * (1 + side * h * torch.eye(len(own), dtype=own.dtype))[:, :, None] for side in (1, -1))
    with torch.no_grad():
        up, down = (asked_with(model, batch, places, number, {"model": one}) for one in (longer, shorter))
    # Central differences: errors of h^2 = 1e-10 and of rounding, 1e-16 / h = 1e-11, times numbers up to some tens.
    torch.testing.assert_close((up - down) / (2 * h), found, rtol=0, atol=1e-8)


def test_integrated_gradients_of_a_polynomial() -> None:
    """For answer = a^3 b along (t a, t b), each token gets the integral of its own derivative, 3/4 and 1/4 of a^3 b."""
    vectors = {"model": torch.tensor([[2.0], [5.0]], dtype=torch.float64)}

    def ask(given: dict[str, Tensor]) -> Tensor:
        a, b = given["model"][:, 0, 0], given["model"][:, 1, 0]
        return a**3 * b

    nothing = {"model": torch.zeros(2, 1, dtype=torch.float64)}
    found = integrated_gradients(embedding=vectors, baseline=nothing, ask=ask)["model"]
    assert found.tolist() == pytest.approx([30.0, 10.0], abs=1e-11)


def test_integrated_gradients_of_an_exponential_are_complete() -> None:
    """With 8 points in each of 4 pieces, the error of Gauss's rule on an entire function is below rounding."""
    assert (PIECES, POINTS) == (4, 8)
    vectors = {"model": torch.tensor([[0.5, -1.0], [1.0, 0.25]], dtype=torch.float64)}
    start = {"model": torch.full((2, 2), 0.1, dtype=torch.float64)}

    def ask(given: dict[str, Tensor]) -> Tensor:
        return given["model"].sum((1, 2)).exp() + given["model"][:, 0, 1].sin()

    found = integrated_gradients(embedding=vectors, baseline=start, ask=ask)["model"]
    ends = [float(ask({"model": side["model"][None]})) for side in (vectors, start)]
    assert float(found.sum()) == pytest.approx(ends[0] - ends[1], abs=1e-12)


def test_integrated_gradients_spend_points_where_the_answer_is_steep() -> None:
    """All of tanh(1000 t) changes before t = 0.003, which 32 points miss: the sum was off by a third. Both tokens get
    their share of the input, 2/3 and 1/3."""
    asked = []

    def ask(given: dict[str, Tensor]) -> Tensor:
        asked.append(len(given["model"]))
        return (1000 * given["model"].sum((1, 2)) / 3).tanh()

    vectors = {"model": torch.tensor([[2.0], [1.0]], dtype=torch.float64)}
    nothing = {"model": torch.zeros(2, 1, dtype=torch.float64)}
    found = integrated_gradients(embedding=vectors, baseline=nothing, ask=ask)["model"]
    assert found.tolist() == pytest.approx([2 / 3, 1 / 3], rel=NEAR)
    assert sum(asked) < MOST / 2


def test_integrated_gradients_of_a_step_stop_and_do_not_add_up() -> None:
    """No gradient sees a step: after MOST points the scores are 0 and the answer is 1."""
    asked = []

    def ask(given: dict[str, Tensor]) -> Tensor:
        asked.append(len(given["model"]))
        numbers = given["model"].sum((1, 2))
        return (numbers > 0.3).double() + 0 * numbers

    vectors = {"model": torch.ones(1, 1, dtype=torch.float64)}
    found = integrated_gradients(embedding=vectors, baseline={"model": torch.zeros(1, 1).double()}, ask=ask)["model"]
    assert found.tolist() == [0]
    assert MOST - 2 * POINTS <= sum(count for count in asked if count == POINTS) <= MOST


@pytest.mark.parametrize("at_once", [1, 2, 16])
def test_occlusion_replaces_each_token_alone(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(module, "AT_ONCE", at_once)
    rng = torch.Generator().manual_seed(0)
    vectors = {"encoder": torch.randn(5, 3, generator=rng), "decoder": torch.randn(2, 3, generator=rng)}
    nothing = {"encoder": torch.randn(5, 3, generator=rng), "decoder": torch.zeros(2, 3)}

    def ask(given: dict[str, Tensor]) -> Tensor:
        return (given["encoder"].sum(-1).cumsum(-1).tanh() * 2).sum(-1) + given["decoder"].prod(-1).sum(-1)

    found = occlusion(embedding=vectors, baseline=nothing, ask=ask)
    whole = ask({stack: one[None] for stack, one in vectors.items()})
    for stack, own in vectors.items():
        for place in range(len(own)):
            other = {name: one[None].clone() for name, one in vectors.items()}
            other[stack][0, place] = nothing[stack][place]
            assert float(found[stack][place]) == pytest.approx(float(whole - ask(other)), abs=1e-5)


def test_random_scores_depend_on_the_seed_only() -> None:
    one, other = ({"model": torch.randn(7, 3)} for _ in range(2))
    same = random(embedding=one, seed=3)["model"]
    assert torch.equal(same, random(embedding=other, seed=3)["model"])
    assert not torch.equal(same, random(embedding=one, seed=4)["model"])
    assert bool(((same >= 0) & (same < 1)).all())


@pytest.mark.parametrize("name", ["GPT-2", "Gemma2", "T5"])
def test_raw_attention_equals_the_row_of_the_last_map(name: str) -> None:
    run, start = captured(name, torch.float64)
    maps, _ = eager_maps(name, torch.float64)
    found = raw_attention(calls=run.calls, start=start)
    last = {"self": "model", "decoder": "decoder", "cross": "encoder"}
    expected = {last[kind]: pattern.mean(0)[-1] for kind, pattern, _ in maps if kind in last}
    assert set(found) == set(expected)
    # The eager attention of Gemma 2 and T5 computes softmax in float32.
    for stack, numbers in found.items():
        torch.testing.assert_close(numbers, expected[stack].double(), rtol=0, atol=1e-12 if name == "GPT-2" else 1e-6)
        assert float(numbers.sum()) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("name", ["BERT", "GPT-2", "Gemma2", "gpt_oss"])
def test_rollout_equals_the_product_of_maps_with_a_skip(name: str) -> None:
    """gpt_oss has learned sinks, so its rows sum to less than 1 and are divided by their sum."""
    dtype = torch.float32 if name == "gpt_oss" else torch.float64
    run, start = captured(name, dtype)
    maps, _ = eager_maps(name, dtype)
    product = torch.eye(len(start["model"]), dtype=torch.float64)
    for _, pattern, _ in maps:
        both = pattern.double().mean(0) + torch.eye(len(product))
        product = (both / both.sum(-1, keepdim=True)) @ product
    found = rollout(calls=run.calls, start=start)["model"]
    # Two blocks: tens of rounding errors of numbers up to 1. Eager Gemma 2 computes softmax in float32.
    dtype = torch.float32 if name == "Gemma2" else dtype
    torch.testing.assert_close(found.double(), product[-1], rtol=0, atol=200 * torch.finfo(dtype).eps)
    assert float(found.sum()) == pytest.approx(1, abs=1e-5)


def test_rollout_does_not_depend_on_the_answer() -> None:
    run, start = captured("GPT-2")
    before = rollout(calls=run.calls, start=start)["model"]
    for call in run.calls:
        assert float(call.gradient.abs().sum()) > 0
    other = [replace(call, gradient=-call.gradient) for call in run.calls]
    assert torch.equal(rollout(calls=other, start=start)["model"], before)


def test_value_zeroing_normalises_rows_and_multiplies_them() -> None:
    moved = torch.tensor([[[1.0, 3.0], [0.0, 0.0]], [[0.0, 0.0], [2.0, 2.0]]], dtype=torch.float64)
    start = {"model": torch.tensor([0.0, 1.0], dtype=torch.float64)}
    found = value_zeroing(zeroed=lambda stack: moved, start=start)["model"]
    # Last block: (1/2, 1/2). First block: row 0 is (1/4, 3/4); row 1 does not move and stays the identity.
    assert found.tolist() == [0.125, 0.875]


@pytest.mark.parametrize("name", ["Llama", "MPNet"])
def test_value_zeroing_equals_blocks_run_with_one_value_zero(name: str) -> None:
    """MPNet computes softmax itself; Llama has the fused kernel and heads that share values."""
    model, batch = model_of(name, torch.float64), batch_of(name)
    found, _ = places_of(name)
    tokens = batch["input_ids"].shape[1]
    moved = moved_by_zeroing(model, batch, found, "model", tokens)
    blocks = model.model.layers if name == "Llama" else model.encoder.layer
    for layer, block in enumerate(blocks):
        projection = block.self_attn.v_proj if name == "Llama" else block.attention.attn.v
        for place in (0, 4, tokens - 1):
            whole, other = (_left(model, block, projection, batch, zero) for zero in (None, place))
            expected = 1 - F.cosine_similarity(whole, other, dim=-1)
            torch.testing.assert_close(moved[layer, :, place], expected.clamp_min(0), rtol=0, atol=1e-12)
    assert float(moved.max()) > 1e-4


def _left(model: torch.nn.Module, block: torch.nn.Module, projection: torch.nn.Module, batch: dict[str, Tensor],
          zero: int | None) -> Tensor:  # fmt: skip
    """Return the output of a block with one value set to zero. Earlier blocks are unchanged."""
    kept: list[Tensor] = []

    def without(module: torch.nn.Module, args: object, output: Tensor) -> Tensor:
        output = output.clone()
        if zero is not None:
            output[:, zero] = 0
        return output

    def keep(module: torch.nn.Module, args: object, output: object) -> None:
        kept.append(output[0][0] if isinstance(output, tuple) else output[0])  # type: ignore[index]

    hooks = [projection.register_forward_hook(without), block.register_forward_hook(keep)]
    try:
        with torch.no_grad():
            model(**batch)
    finally:
        for hook in hooks:
            hook.remove()
    return kept[0]
