"""What meets in the middle against what follows every draw and every suffix to the end."""

from __future__ import annotations

import pytest
import torch

from attnscope.pathways.ends import both_ends, drawn_signs
from attnscope.pathways.heads import head_table
from attnscope.pathways.lengths import followed_to_the_end, lengths, path_energy
from attnscope.pathways.network import edges
from attnscope.pathways.shapley import shapley
from attnscope.pathways.tape import Recorded, UnrecordedError
from attnscope.pathways.targets import logit, pulled_back_through_tail
from attnscope.pathways.top_paths import TopPaths, top_paths
from tests.pathways.enumeration import Explicit, Shape, network
from tests.pathways.slow_top_paths import slow_top_paths

CASES = [
    Shape(6, 2, "pre", mlp=5, mix="sdpa"),
    Shape(5, 3, "post", mlp=5, mix="bmm"),
    Shape(6, 2, "none", mix="einsum", skip=0.5),
]


def assert_same_paths(found: TopPaths, expected: TopPaths) -> None:
    assert [path.heads for path in found.paths] == [path.heads for path in expected.paths]
    for one, other in zip(found.paths, expected.paths, strict=True):
        assert one.contribution == pytest.approx(other.contribution, rel=1e-10)
        assert (one.sequence, one.token) == (other.sequence, other.token)
        assert one.of_token == pytest.approx(other.of_token, rel=1e-10)
    assert found.exact == expected.exact
    assert found.missed == pytest.approx(expected.missed, rel=1e-10)


@pytest.mark.parametrize("width", [4, 10, 30, 1000])
@pytest.mark.parametrize("shape", CASES, ids=str)
def test_the_search_keeps_what_it_kept(shape: Shape, width: int) -> None:
    """From no block written out at either end, over some at both, to all of them."""
    model = Explicit(shape)
    made = network(model, model.example(batch=2))
    found = top_paths(made, logit(2), count=4, width=width, draws=7, seed=3)
    assert_same_paths(found, slow_top_paths(made, logit(2), count=4, width=width, draws=7, seed=3))


@pytest.mark.parametrize("shape", CASES, ids=str)
def test_energies_of_a_target_are_those_of_draws_that_are_followed_to_the_end(shape: Shape) -> None:
    model = Explicit(shape)
    made, target = network(model, model.example(batch=2)), logit(2)
    adjoint, _ = pulled_back_through_tail(made, target)
    generator = torch.Generator().manual_seed(5)
    groups = [drawn_signs(edges(made), count, generator, adjoint) for count in (4, 4, 2)]
    signed = torch.cat([followed_to_the_end(made, signs) for signs in groups])
    expected = torch.einsum("dk...,...->dk", signed, adjoint).square()
    for most in (1, 4, 10, 1000):
        found = path_energy(made, 10, 5, target, at_once=4, ends=both_ends(made, target, most))
        assert torch.allclose(found.energy, expected.mean(0), rtol=1e-11, atol=0)
        assert torch.allclose(found.standard_error, expected.std(0) / 10**0.5, rtol=1e-9, atol=1e-14)
        sums = torch.einsum("k...,...->k", lengths(made).stream.parts[0, :, 0], adjoint)
        assert torch.allclose(found.sums, sums.square(), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("shape", CASES, ids=str)
def test_sources_meet_adjoints_as_they_are_followed_forward(shape: Shape) -> None:
    model = Explicit(shape)
    made, target = network(model, model.example(batch=2)), logit(2)
    adjoint, constant = pulled_back_through_tail(made, target)
    expected = torch.einsum("sk...,...->sk", lengths(made).stream.parts[:, :, 0], adjoint)
    expected[1, 0] += constant
    table = head_table(made, target)
    assert torch.allclose(table.sources, expected, rtol=1e-10, atol=1e-13)
    assert torch.allclose(table.lengths, expected.sum(0), rtol=1e-10, atol=1e-13)


def test_a_rule_that_needs_numbers_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are differentiated where they cannot be written on a tape: values, energies and paths are the same."""
    model = Explicit(CASES[0])
    made, target = network(model, model.example()), logit(1)

    def everything() -> tuple[torch.Tensor, torch.Tensor, TopPaths]:
        values = shapley(made, target)
        energy = path_energy(made, 6, 1, target, ends=both_ends(made, target, 4))
        return torch.cat([*values.heads, *values.mlps]), energy.energy, top_paths(made, target, count=4, width=10)

    quick = everything()

    def unable(*_: object) -> None:
        raise UnrecordedError("parts")

    monkeypatch.setattr(Recorded, "through", unable)
    slow = everything()
    assert (quick[0] - slow[0]).abs().max() <= 1e-12 * quick[0].abs().max()
    assert torch.allclose(quick[1], slow[1], rtol=1e-11, atol=0)
    assert_same_paths(quick[2], slow[2])
