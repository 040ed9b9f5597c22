"""Relevance without maps equals the paper's rules on full maps, and cases solved by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor

from attnscope.explanations.relevance import relevance
from attnscope.matrix.relevance import AttentionCall
from attnscope.matrix.scores import Scores
from tests.explanations.dense import by_the_rule, placed, written_out
from tests.explanations.runs import BY_NAME, batch_of, captured, eager_maps, number

# Soft-capping (Gemma2), sinks and windows (gpt_oss), grouped heads (Llama), position bias (T5, Bloom), a softmax of
# their own (MPNet, GPT-J).
ONE_STACK = ("BERT", "GPT-2", "Llama", "Mistral", "Gemma2", "gpt_oss", "MPNet", "GPT-J", "Bloom")
TWO_STACKS = ("T5", "BART")


def assert_near(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """Allow a few thousand rounding errors of the largest entry.

    Two kernels compute one model: each entry collects a few hundred rounding errors in two blocks. Products of maps add
    no cancellation, because all terms are >= 0, but gradients are differences.
    """
    allowed = 4e3 * torch.finfo(dtype).eps * float(expected.abs().max())
    assert float((found.double() - expected).abs().max()) <= allowed
    assert float(expected.max()) > 0


def computed(name: str) -> torch.dtype:
    return torch.float32 if name == "gpt_oss" else torch.float64  # its experts run in float32 only


def rounded(name: str) -> torch.dtype:
    """Return whether the eager attention computes softmax in float32."""
    return torch.float32 if name in ("Llama", "Mistral", "Gemma2", "gpt_oss") else computed(name)


@pytest.mark.parametrize("name", [*ONE_STACK, *TWO_STACKS])
def test_equals_the_rule_on_dense_maps(name: str) -> None:
    run, start = captured(name, computed(name))
    maps, value = written_out(BY_NAME[name].model().to(computed(name)), batch_of(name), number)
    assert value == pytest.approx(run.value, rel=4e3 * torch.finfo(rounded(name)).eps)
    ((last, weights),) = start.items()
    assert list(weights) == [0.0] * (len(weights) - 1) + [1.0]
    at_places = placed(maps, run.calls)
    assert at_places is not None
    expected = by_the_rule(at_places)
    found = relevance(calls=run.calls, start=start)
    assert found.keys() == expected.keys() == run.embedding.keys()
    assert last == list(expected)[-1]
    for stack, row in found.items():
        assert_near(row, expected[stack], rounded(name))


@pytest.mark.parametrize("name", ["BERT", "gpt_oss", "BART"])
def test_dense_maps_equal_output_attentions(name: str) -> None:
    """Compare with `output_attentions`, which not every model has, and which are sorted by kind."""
    run, _ = captured(name, computed(name))
    maps, _ = written_out(BY_NAME[name].model().to(computed(name)), batch_of(name), number)
    at_places = placed(maps, run.calls)
    assert at_places is not None
    said, _ = eager_maps(name, computed(name))
    kinds = {("encoder", "encoder"): "encoder", ("decoder", "decoder"): "decoder", ("decoder", "encoder"): "cross"}
    for kind in dict.fromkeys(kind for kind, _, _ in said):
        mine = [one for one in at_places if kinds.get((one.stack, one.keys_from), "self") == kind]
        own = [(pattern, gradient) for k, pattern, gradient in said if k == kind]
        assert len(mine) == len(own) > 0
        for one, (pattern, gradient) in zip(mine, own, strict=True):
            assert torch.equal(one.pattern, pattern)
            torch.testing.assert_close(one.gradient, gradient)


def by_hand(
    gradient: Tensor, stack: str = "model", keys: str = "model", rows: int = 3, columns: int = 3
) -> AttentionCall:
    """Return a call with uniform attention, one head and unit vectors as values, so that dA is the gradient."""
    scores = Scores(torch.zeros(1, 1, rows, 1).double(), torch.zeros(1, 1, columns, 1).double(), 1.0)
    value = torch.eye(columns, dtype=torch.float64)[None, None]
    return AttentionCall(stack, keys, 0, scores, value, gradient.double()[None, :, None])


def row(*numbers: float) -> dict[str, Tensor]:
    return {"model": torch.tensor(numbers, dtype=torch.float64)}


def test_relevance_of_one_block_is_abar() -> None:
    gradient = torch.tensor([[3.0, -3.0, 6.0], [0.0, 9.0, 0.0], [-1.0, 0.0, 3.0]])
    for place, expected in enumerate([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0], [0.0, 0.0, 1.0]]):
        start = row(*torch.eye(3)[place].tolist())
        found = relevance(calls=[by_hand(gradient)], start=start)["model"]
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_relevance_of_two_blocks_is_a_product() -> None:
    """The result is the last row of R = (I + A2)(I + A1), minus the identity."""
    first, second = torch.tensor([[0.0, 0, 0], [3, 0, 0], [0, 0, 0]]), torch.tensor([[0.0, 0, 0], [0, 0, 0], [0, 6, 0]])
    found = relevance(calls=[by_hand(first), by_hand(second)], start=row(0, 0, 1))["model"]
    assert found.tolist() == pytest.approx([2.0, 2.0, 0.0])


def test_negative_gradients_give_zero_relevance() -> None:
    calls = [by_hand(-torch.rand(3, 3)) for _ in range(3)]
    assert relevance(calls=calls, start=row(0, 0, 1))["model"].tolist() == [0.0, 0.0, 0.0]


def test_never_negative_and_finite_for_zero_rows() -> None:
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
