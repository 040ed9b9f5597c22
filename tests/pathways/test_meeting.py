"""Meeting in the middle against following all paths to the end; adjoints carried back against derivatives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from attnscope.hf.editing.freeze import freeze
from attnscope.pathways.ends import by_length
from attnscope.pathways.graded import Count
from attnscope.pathways.heads import head_table
from attnscope.pathways.lengths import lengths
from attnscope.pathways.network import Network
from attnscope.pathways.slow_adjoint import pulled_slowly
from attnscope.pathways.sums import Sums
from attnscope.pathways.tape import Recorded, UnrecordedError, pulled_through
from attnscope.pathways.targets import (
    Target,
    logit,
    logit_difference,
    pulled_back,
    pulled_back_by_length,
    pulled_back_through_tail,
)
from tests.pathways.enumeration import Explicit, Shape, network
from tests.specimens import tiny_llama

CASES = [
    Shape(3, 2, "pre", mlp=5, mix="sdpa"),
    Shape(4, 2, "post", mlp=5, mix="bmm", activation="silu"),
    Shape(3, 2, "none", mlp=5, mix="einsum", activation="relu"),
    Shape(3, 2, "pre", mlp=5, mix="matmul", skip=0.0),
    Shape(3, 2, "post", mix="matmul"),
]


def followed_to_the_end(made: Network, target: Target, count: Count, sources: bool = True) -> tuple[Tensor, float]:
    """The full recursion, and how far two ways of adding it up may be apart.

    Either way is at most 2 L products one behind the other, each a sum of at most w terms, and one product of n d
    entries in the middle: each rounds by its length times u, relative to what is added up, which is no more than
    |Y^(k)| |g| for the paths of length k.
    """
    with torch.no_grad():
        last, constant = pulled_back_through_tail(made, target)
        parts = lengths(made, count, sources).stream.parts[:, :, 0]
        values = torch.einsum("sk...,...->sk", parts, last)
        values[-1, 0] += constant
        sizes = float(parts.flatten(2).norm(dim=-1).sum() * last.norm()) + abs(constant)
    unit = torch.finfo(last.dtype).eps / 2
    wide = 4 * made.streams[0].shape[-1] + made.streams[0].shape[-2]
    return values, 4 * made.layers * (wide + made.streams[0].numel()) * unit * sizes


def assert_same(found: Tensor, expected: Tensor, allowed: float) -> None:
    """Rows of lengths; lengths that no path has may be left out of either."""
    longest = max(found.shape[-1], expected.shape[-1])
    one, other = (torch.nn.functional.pad(x, (0, longest - x.shape[-1])) for x in (found, expected))
    assert (one - other).abs().max() <= allowed


@pytest.mark.parametrize("count", ["attention", "edges"])
@pytest.mark.parametrize("shape", CASES, ids=str)
def test_every_middle_gives_what_the_full_recursion_gives(shape: Shape, count: Count) -> None:
    model = Explicit(shape)
    made, target = network(model, model.example(batch=2)), logit_difference(3, 1)
    expected, allowed = followed_to_the_end(made, target, count)
    assert allowed < 1e-9 * expected.abs().sum()  # a way that is missed would be seen
    for middle in range(shape.layers + 1):
        found = by_length(made, target, count, middle=middle)  # type: ignore[arg-type]
        assert_same(found.values, expected, allowed)
        one = by_length(made, target, count, sources=False, middle=middle)  # type: ignore[arg-type]
        assert one.values[1].abs().max() == 0
        assert_same(one.lengths, expected.sum(0), allowed)
    assert abs(float(found.lengths.sum()) - float(target(made.output))) <= allowed


@pytest.mark.parametrize("count", ["attention", "edges"])
@pytest.mark.parametrize("shape", CASES, ids=str)
def test_a_tape_gives_what_derivatives_give(shape: Shape, count: Count) -> None:
    model = Explicit(shape)
    made = network(model, model.example())
    generator = torch.Generator().manual_seed(2)
    after = Sums(torch.randn(1, 3, 1, *made.streams[0].shape, generator=generator, dtype=torch.float64))
    found = pulled_through(made, 1, after, count, heads=True)
    before, constants, heads = pulled_slowly(made, 1, after, count)
    assert found.before is not None
    assert found.constants is not None
    assert before is not None
    assert constants is not None
    # Entries of size 10 at most through a block of at most 20 terms a product: roundings of 1e-13 at most.
    assert_same(found.before.dense[0, :, 0].flatten(1).mT, before.dense[0, :, 0].flatten(1).mT, 1e-12)
    assert_same(found.constants.dense[0, :, 0], constants.dense[0, :, 0], 1e-12)
    assert len(found.kept) == len(heads) == 1
    assert found.kept[0] is not None
    assert_same(found.kept[0].dense[0, :, 0].flatten(1).mT, heads[0].dense[0, :, 0].flatten(1).mT, 1e-12)


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=60, n_positions=16, n_embd=24, n_layer=3, n_head=3, initializer_range=0.3)
    return GPT2LMHeadModel(config).eval()


@pytest.mark.parametrize("model", [tiny_llama, gpt2], ids=["grouped heads and gated MLPs", "fused projections"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_models_of_transformers(model: Callable[[], torch.nn.Module], dtype: torch.dtype) -> None:
    made = freeze(model().to(dtype), {"input_ids": torch.tensor([[5, 9, 2, 9, 30, 7]])})
    expected, allowed = followed_to_the_end(made, logit(4), "edges")
    found = by_length(made, logit(4))
    assert found.middle == 1
    assert expected.shape[1] == 2 * made.layers + 1
    assert_same(found.values, expected, allowed)


def test_what_begins_at_the_input_is_split_by_length() -> None:
    model = Explicit(CASES[1])
    made, target = network(model, model.example()), logit(2)
    adjoint, constants = pulled_back_by_length(made, target)
    expected, allowed = followed_to_the_end(made, target, "attention")
    assert_same((made.streams[0] * adjoint).flatten(1).sum(1), expected[0], allowed)
    assert_same(constants, expected[1], allowed)
    whole, constant = pulled_back(made, target)
    assert (adjoint.sum(0) - whole).abs().max() <= allowed
    assert abs(float(constants.sum()) - constant) <= allowed


def test_parts_of_a_stream_that_are_joined_and_scalars_that_are_added() -> None:
    """Functions without a transpose of their own: joined, cut, broadcast, taken away."""
    weight = torch.linspace(-1, 1, 16, dtype=torch.float64).reshape(4, 4)

    def block(x: Tensor) -> Tensor:
        joined = torch.cat([x[..., :2] * 2, 1 - x[..., 2:]], dim=-1)
        middle = joined.mean(-2, keepdim=True) + 0.5
        return x + torch.nn.functional.gelu(joined @ weight) - middle

    x = torch.linspace(-2, 2, 12, dtype=torch.float64).reshape(1, 3, 4)
    made = Network("joined", (x, block(x)), (block,), torch.nn.Identity(), block(x))
    after = Sums(torch.linspace(0, 1, 24, dtype=torch.float64).reshape(1, 2, 1, 1, 3, 4))
    found = pulled_through(made, 0, after, "edges")
    before, constants, _ = pulled_slowly(made, 0, after, "edges")
    assert found.before is not None
    assert before is not None
    assert found.constants is not None
    assert constants is not None
    assert_same(found.before.dense[0, :, 0].flatten(1).mT, before.dense[0, :, 0].flatten(1).mT, 1e-13)
    assert_same(found.constants.dense[0, :, 0], constants.dense[0, :, 0], 1e-13)


def test_a_rule_that_needs_numbers_is_followed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Explicit(CASES[0])
    made, target = network(model, model.example()), logit(1)
    quick, table = by_length(made, target), head_table(made, target)
    with pytest.raises(UnrecordedError):
        _ = Recorded.__getattr__(None, "parts")  # type: ignore[arg-type]

    def unable(*_: object) -> None:
        raise UnrecordedError("parts")

    monkeypatch.setattr(Recorded, "through", unable)
    assert (by_length(made, target).values - quick.values).abs().max() <= 1e-13
    assert (head_table(made, target).contributions - table.contributions).abs().max() <= 1e-13
