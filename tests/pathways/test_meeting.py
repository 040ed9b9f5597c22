"""Meeting in the middle against following all paths, draws and suffixes to the end; tapes against derivatives."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from attnscope.hf.editing.freeze import freeze
from attnscope.pathways.energy import drawn_signs, outer_routes, path_energy, signed_sums_forward
from attnscope.pathways.graded import Count
from attnscope.pathways.heads import head_table
from attnscope.pathways.lengths import by_length, lengths
from attnscope.pathways.network import Network, edges
from attnscope.pathways.shapley import shapley
from attnscope.pathways.sums import Sums
from attnscope.pathways.tape import Pulled, Recorded, UnrecordedError, pulled_slowly, pulled_through
from attnscope.pathways.targets import (
    Target,
    logit,
    logit_difference,
    pulled_back,
    pulled_back_by_length,
    pulled_back_through_tail,
)
from attnscope.pathways.top_paths import TopPaths, top_paths
from tests.pathways.enumeration import Explicit, Shape, network
from tests.pathways.slow_top_paths import slow_top_paths
from tests.specimens import tiny_llama

CASES = [
    Shape(3, 2, "pre", mlp=5, mix="sdpa"),
    Shape(4, 2, "post", mlp=5, mix="bmm", activation="silu"),
    Shape(3, 2, "none", mlp=5, mix="einsum", activation="relu"),
    Shape(3, 2, "pre", mlp=5, mix="matmul", skip=0.0),
    Shape(3, 2, "post", mix="matmul"),
]
DEEP_CASES = [
    Shape(6, 2, "pre", mlp=5, mix="sdpa"),
    Shape(5, 3, "post", mlp=5, mix="bmm"),
    Shape(6, 2, "none", mix="einsum", skip=0.5),
]


def unable(*_: object) -> None:
    """Replace a rule by one that a tape cannot record."""
    raise UnrecordedError("parts")


def whole_recursion(made: Network, target: Target, count: Count, sources: bool = True) -> tuple[Tensor, float]:
    """Return the sums of the full recursion, and a bound on the rounding between two orders of summation.

    Either order has at most 2 L products in sequence, each a sum of at most w terms, and one product of n d entries in
    the middle. Each rounds by its length times u relative to its terms, which are at most |Y^(k)| |g| for the paths of
    length k.
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
    """Compare rows of lengths; either may omit trailing lengths without a path."""
    longest = max(found.shape[-1], expected.shape[-1])
    one, other = (torch.nn.functional.pad(x, (0, longest - x.shape[-1])) for x in (found, expected))
    assert (one - other).abs().max() <= allowed


def assert_same_adjoints(found: Pulled, expected: Pulled, heads: int, allowed: float) -> None:
    assert len(found.kept) == len(expected.kept) == heads
    for one, other in zip((found.before, *found.kept), (expected.before, *expected.kept), strict=True):
        assert one is not None
        assert other is not None
        assert_same(one.dense[0, :, 0].flatten(1).mT, other.dense[0, :, 0].flatten(1).mT, allowed)
    assert found.constants is not None
    assert expected.constants is not None
    assert_same(found.constants.dense[0, :, 0], expected.constants.dense[0, :, 0], allowed)


@pytest.mark.parametrize("count", ["attention", "edges"])
@pytest.mark.parametrize("shape", CASES, ids=str)
def test_every_middle_equals_the_full_recursion(shape: Shape, count: Count) -> None:
    model = Explicit(shape)
    made, target = network(model, model.example(batch=2)), logit_difference(3, 1)
    expected, allowed = whole_recursion(made, target, count)
    assert allowed < 1e-9 * expected.abs().sum()  # a missing path would show
    for middle in range(shape.layers + 1):
        found = by_length(made, target, count, middle=middle)  # type: ignore[arg-type]
        assert_same(found.values, expected, allowed)
        one = by_length(made, target, count, sources=False, middle=middle)  # type: ignore[arg-type]
        assert one.values[1].abs().max() == 0
        assert_same(one.lengths, expected.sum(0), allowed)
    assert abs(float(found.lengths.sum()) - float(target(made.output))) <= allowed


@pytest.mark.parametrize("count", ["attention", "edges"])
@pytest.mark.parametrize("shape", CASES, ids=str)
def test_tape_equals_derivatives(shape: Shape, count: Count) -> None:
    model = Explicit(shape)
    made = network(model, model.example())
    generator = torch.Generator().manual_seed(2)
    after = Sums(torch.randn(1, 3, 1, *made.streams[0].shape, generator=generator, dtype=torch.float64))
    found = pulled_through(made, 1, after, count, heads=True)
    # Entries of size 10 at most through a block of at most 20 terms a product: roundings of 1e-13 at most.
    assert_same_adjoints(found, pulled_slowly(made, 1, after, count), heads=1, allowed=1e-12)


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=60, n_positions=16, n_embd=24, n_layer=3, n_head=3, initializer_range=0.3)
    return GPT2LMHeadModel(config).eval()


@pytest.mark.parametrize("model", [tiny_llama, gpt2], ids=["grouped heads and gated MLPs", "fused projections"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_models_of_transformers(model: Callable[[], torch.nn.Module], dtype: torch.dtype) -> None:
    made = freeze(model().to(dtype), {"input_ids": torch.tensor([[5, 9, 2, 9, 30, 7]])})
    expected, allowed = whole_recursion(made, logit(4), "edges")
    found = by_length(made, logit(4))
    assert found.middle == 1
    assert expected.shape[1] == 2 * made.layers + 1
    assert_same(found.values, expected, allowed)


def test_adjoints_at_the_input_add_up_by_length() -> None:
    model = Explicit(CASES[1])
    made, target = network(model, model.example()), logit(2)
    adjoint, constants = pulled_back_by_length(made, target)
    expected, allowed = whole_recursion(made, target, "attention")
    assert_same((made.streams[0] * adjoint).flatten(1).sum(1), expected[0], allowed)
    assert_same(constants, expected[1], allowed)
    whole, constant = pulled_back(made, target)
    assert (adjoint.sum(0) - whole).abs().max() <= allowed
    assert abs(float(constants.sum()) - constant) <= allowed


def test_functions_without_a_written_transpose() -> None:
    weight = torch.linspace(-1, 1, 16, dtype=torch.float64).reshape(4, 4)

    def block(x: Tensor) -> Tensor:
        joined = torch.cat([x[..., :2] * 2, 1 - x[..., 2:]], dim=-1)
        middle = joined.mean(-2, keepdim=True) + 0.5
        return x + torch.nn.functional.gelu(joined @ weight) - middle

    x = torch.linspace(-2, 2, 12, dtype=torch.float64).reshape(1, 3, 4)
    made = Network("joined", (x, block(x)), (block,), torch.nn.Identity(), block(x))
    after = Sums(torch.linspace(0, 1, 24, dtype=torch.float64).reshape(1, 2, 1, 1, 3, 4))
    found = pulled_through(made, 0, after, "edges")
    assert_same_adjoints(found, pulled_slowly(made, 0, after, "edges"), heads=0, allowed=1e-13)


def test_lengths_and_table_without_a_tape_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Explicit(CASES[0])
    made, target = network(model, model.example()), logit(1)
    quick, table = by_length(made, target), head_table(made, target)
    with pytest.raises(UnrecordedError):
        _ = Recorded.__getattr__(None, "parts")  # type: ignore[arg-type]
    monkeypatch.setattr(Recorded, "through", unable)
    assert (by_length(made, target).values - quick.values).abs().max() <= 1e-13
    assert (head_table(made, target).contributions - table.contributions).abs().max() <= 1e-13


def assert_same_paths(found: TopPaths, expected: TopPaths) -> None:
    assert [path.heads for path in found.paths] == [path.heads for path in expected.paths]
    for one, other in zip(found.paths, expected.paths, strict=True):
        assert one.contribution == pytest.approx(other.contribution, rel=1e-10)
        assert (one.sequence, one.token) == (other.sequence, other.token)
        assert one.of_token == pytest.approx(other.of_token, rel=1e-10)
    assert found.exact == expected.exact
    assert found.missed == pytest.approx(expected.missed, rel=1e-10)


@pytest.mark.parametrize("width", [4, 10, 30, 1000])
@pytest.mark.parametrize("shape", DEEP_CASES, ids=str)
def test_search_equals_the_slow_search(shape: Shape, width: int) -> None:
    """Widths from which no block, some blocks, or all blocks are enumerated."""
    model = Explicit(shape)
    made = network(model, model.example(batch=2))
    found = top_paths(made, logit(2), count=4, width=width, draws=7, seed=3)
    assert_same_paths(found, slow_top_paths(made, logit(2), count=4, width=width, draws=7, seed=3))


@pytest.mark.parametrize("shape", DEEP_CASES, ids=str)
def test_energies_of_a_target_equal_draws_followed_forward(shape: Shape) -> None:
    model = Explicit(shape)
    made, target = network(model, model.example(batch=2)), logit(2)
    adjoint, _ = pulled_back_through_tail(made, target)
    generator = torch.Generator().manual_seed(5)
    groups = [drawn_signs(edges(made), count, generator, adjoint) for count in (4, 4, 2)]
    signed = torch.cat([signed_sums_forward(made, signs) for signs in groups])
    expected = torch.einsum("dk...,...->dk", signed, adjoint).square()
    for most in (1, 4, 10, 1000):
        found = path_energy(made, 10, 5, target, at_once=4, outer=outer_routes(made, target, most))
        assert torch.allclose(found.energy, expected.mean(0), rtol=1e-11, atol=0)
        assert torch.allclose(found.standard_error, expected.std(0) / 10**0.5, rtol=1e-9, atol=1e-14)
        sums = torch.einsum("k...,...->k", lengths(made).stream.parts[0, :, 0], adjoint)
        assert found.sums is not None
        assert torch.allclose(found.sums, sums.square(), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("shape", DEEP_CASES, ids=str)
def test_sources_of_the_head_table_equal_the_forward_recursion(shape: Shape) -> None:
    model = Explicit(shape)
    made, target = network(model, model.example(batch=2)), logit(2)
    adjoint, constant = pulled_back_through_tail(made, target)
    expected = torch.einsum("sk...,...->sk", lengths(made).stream.parts[:, :, 0], adjoint)
    expected[1, 0] += constant
    table = head_table(made, target)
    assert torch.allclose(table.sources, expected, rtol=1e-10, atol=1e-13)
    assert torch.allclose(table.lengths, expected.sum(0), rtol=1e-10, atol=1e-13)


def test_values_energies_and_paths_without_a_tape_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Explicit(DEEP_CASES[0])
    made, target = network(model, model.example()), logit(1)

    def everything() -> tuple[torch.Tensor, torch.Tensor, TopPaths]:
        values = shapley(made, target)
        energy = path_energy(made, 6, 1, target, outer=outer_routes(made, target, 4))
        return torch.cat([*values.heads, *values.mlps]), energy.energy, top_paths(made, target, count=4, width=10)

    quick = everything()
    monkeypatch.setattr(Recorded, "through", unable)
    slow = everything()
    assert (quick[0] - slow[0]).abs().max() <= 1e-12 * quick[0].abs().max()
    assert torch.allclose(quick[1], slow[1], rtol=1e-11, atol=0)
    assert_same_paths(quick[2], slow[2])
