"""Rollout against the product of maps that models write out."""

from dataclasses import replace

import pytest
import torch

from attnscope.explanations.rollout import rollout
from tests.explanations.runs import captured, eager_maps


@pytest.mark.parametrize("name", ["BERT", "GPT-2", "Gemma2", "gpt_oss"])
def test_equals_the_product_of_maps_with_a_skip(name: str) -> None:
    """gpt_oss has learned sinks: its rows sum to less than 1, and are divided by what they have."""
    dtype = torch.float32 if name == "gpt_oss" else torch.float64
    run, start = captured(name, dtype)
    maps, _ = eager_maps(name, dtype)
    product = torch.eye(len(start["model"]), dtype=torch.float64)
    for _, pattern, _ in maps:
        both = pattern.double().mean(0) + torch.eye(len(product))
        product = (both / both.sum(-1, keepdim=True)) @ product
    found = rollout(calls=run.calls, start=start)["model"]
    # Rows of shares through two layers: tens of roundings of numbers up to 1. Written out, Gemma 2 has float32 softmax.
    dtype = torch.float32 if name == "Gemma2" else dtype
    torch.testing.assert_close(found.double(), product[-1], rtol=0, atol=200 * torch.finfo(dtype).eps)
    assert float(found.sum()) == pytest.approx(1, abs=1e-5)


def test_the_answer_plays_no_part_in_it() -> None:
    run, start = captured("GPT-2")
    before = rollout(calls=run.calls, start=start)["model"]
    for call in run.calls:
        assert float(call.gradient.abs().sum()) > 0
    other = [replace(call, gradient=-call.gradient) for call in run.calls]
    assert torch.equal(rollout(calls=other, start=start)["model"], before)
