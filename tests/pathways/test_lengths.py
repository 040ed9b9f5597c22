"""Sums and energies of all lengths against every single path; what long paths do to rank."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.matrix.residual import relative_residual
from attnscope.pathways import energy
from attnscope.pathways.energy import path_energy
from attnscope.pathways.graded import Count
from attnscope.pathways.lengths import lengths, rank_view
from attnscope.pathways.network import number_of_paths
from attnscope.pathways.targets import logit
from tests.pathways.enumeration import Explicit, Path, Shape, network, paths

ATTENTION = [
    Shape(5, 4, "pre"),
    Shape(5, 4, "post", mix="sdpa"),
    Shape(5, 4, "none", mix="einsum"),
    Shape(5, 4, "pre", mix="bmm", biases=False),
]
WITH_MLP = [
    Shape(4, 3, "pre", mlp=5, activation="gelu"),
    Shape(4, 3, "post", mlp=5, activation="silu", mix="sdpa"),
    Shape(4, 3, "none", mlp=5, activation="relu", mix="bmm"),
]


def sorted_sums(every: list[Path], model: Explicit) -> dict[Count, Tensor]:
    """[source, attention, mlp, *shape] summed path by path, for every way of counting."""
    places = model.shape.layers + 1
    sums = np.zeros((2, places, places, *every[0].value.shape))
    for path in every:
        sums[path.source, path.attention, path.mlp] += path.value
    both = torch.from_numpy(sums)
    edges = torch.zeros(2, 2 * places - 1, 1, *both.shape[3:], dtype=torch.float64)
    for attention in range(places):
        for mlp in range(places):
            edges[:, attention + mlp, 0] += both[:, attention, mlp]
    return {
        "attention": both.sum(2, keepdim=True),
        "both": both,
        "edges": edges,
        "none": both.sum((1, 2), keepdim=True),
    }


def agree(graded: Tensor, enumerated: Tensor) -> None:
    """Compare to 1e-12 of the largest entry; missing places count as zero."""
    wide = torch.zeros_like(enumerated)
    wide[:, : graded.shape[1], : graded.shape[2]] = graded
    assert (wide - enumerated).abs().max() <= 1e-12 * enumerated.abs().max()


@pytest.mark.parametrize("shape", [*ATTENTION, *WITH_MLP], ids=str)
def test_sums_of_all_lengths(shape: Shape) -> None:
    model = Explicit(shape)
    x = model.example()
    frozen = network(model, x)
    every = list(paths(model, x))
    assert sum(path.source == 0 for path in every) >= 3000
    for count, enumerated in sorted_sums(every, model).items():
        found = lengths(frozen, count)
        agree(found.stream.parts, enumerated)
        merged = lengths(frozen, count, sources=False)
        assert torch.allclose(merged.stream.parts[0], found.stream.parts.sum(0), rtol=0, atol=1e-12)
    whole = torch.from_numpy(np.sum([path.value for path in every], axis=0))
    assert (whole - frozen.streams[-1]).abs().max() <= 1e-12 * whole.abs().max()


@pytest.mark.parametrize("shape", ATTENTION[:2], ids=str)
def test_number_and_mean_of_paths(shape: Shape) -> None:
    model = Explicit(shape)
    x = model.example()
    frozen = network(model, x)
    mine = [path for path in paths(model, x) if path.source == 0]
    counts = number_of_paths(frozen)
    assert counts == tuple(sum(path.attention == k for path in mine) for k in range(shape.layers + 1))
    by_length = [[path.value for path in mine if path.attention == k] for k in range(shape.layers + 1)]
    means = torch.from_numpy(np.stack([np.mean(values, axis=0) for values in by_length]))
    sums = lengths(frozen).stream.parts[0].sum(1)
    found = sums / sums.new_tensor(counts).reshape(-1, 1, 1, 1)
    assert (found - means).abs().max() <= 1e-12 * means.abs().max()


def test_several_sequences_and_no_skip() -> None:
    model = Explicit(Shape(3, 2, "post", mlp=5, skip=0.0))
    x = model.example(batch=2)
    found = lengths(network(model, x), "both")
    assert found.stream.parts.shape[1:3] == (4, 4)
    long = [path for path in paths(model, x) if "skip" not in path.names]
    whole = torch.from_numpy(np.sum([path.value for path in long if path.source == 0], axis=0))
    assert torch.allclose(found.stream.parts[0, 3, 3], whole, rtol=0, atol=1e-12)
    assert found.stream.parts[0].flatten(0, 1)[:-1].abs().max() == 0  # without skips every path has all edges


def test_cumulative_output_ends_at_the_models_own() -> None:
    model = Explicit(WITH_MLP[0])
    frozen = network(model, model.example())
    found = lengths(frozen)
    outputs = list(found.cumulative())
    assert len(outputs) == 5
    assert torch.allclose(outputs[-1], frozen.output, rtol=0, atol=1e-12)
    rest = found.without(2) + outputs[2] - outputs[1]
    assert torch.allclose(rest, frozen.output, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [Shape(4, 3, "post"), Shape(3, 3, "pre", mlp=5, mix="bmm")], ids=str)
def test_energy_is_the_sum_of_squares(shape: Shape) -> None:
    model = Explicit(shape)
    frozen = network(model, model.example())
    row = model.out.weight[2].detach().numpy()
    blocks: dict[tuple[int, ...], np.ndarray] = {}
    for path in paths(model, model.example()):
        if path.source == 0:  # with MLPs as part of their block, one path is a choice of heads
            stride = 1 if shape.mlp is None else 2
            heads = tuple(int(n[1:]) + 1 if n[0] == "h" else 0 for n in path.names[::stride])
            blocks[heads] = blocks.get(heads, 0) + path.value
    energy, of_logit = np.zeros(shape.layers + 1), np.zeros(shape.layers + 1)
    for heads, value in blocks.items():
        length = sum(h > 0 for h in heads)
        energy[length] += (value**2).sum()
        of_logit[length] += (value[0, -1] @ row) ** 2
    estimated = path_energy(frozen, draws=400, seed=3, at_once=400)
    aimed = path_energy(frozen, draws=400, seed=3, at_once=400, target=logit(2))
    for estimate, truth in ((estimated, energy), (aimed, of_logit)):
        off = (estimate.energy - torch.from_numpy(truth)).abs()
        assert (off <= 4 * estimate.standard_error + 1e-12 * float(truth.max())).all()
        assert (estimate.standard_error[1:] < 0.3 * torch.from_numpy(truth)[1:]).all()
    assert estimated.energy[0] == pytest.approx(energy[0], rel=1e-12)  # one path, no sign
    sums = lengths(frozen).stream.parts[0].sum(1).square().flatten(1).sum(1)
    assert estimated.sums is not None
    assert torch.allclose(estimated.sums, sums, rtol=1e-12)


def test_energy_refuses_one_draw_and_repeats_with_its_seed() -> None:
    model = Explicit(Shape(3, 2, "pre"))
    frozen = network(model, model.example())
    with pytest.raises(RefusalError, match="two draws"):
        path_energy(frozen, draws=1)
    one, other = (path_energy(frozen, draws=5, seed=1, at_once=k).energy for k in (5, 5))
    assert torch.equal(one, other)


@pytest.mark.parametrize("draws", [2, 5, 8, 11])
def test_energies_do_not_depend_on_how_draws_are_grouped(draws: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Explicit(Shape(3, 2, "pre"))
    frozen = network(model, model.example())
    ask: dict[str, Any] = {"draws": draws, "seed": 1, "target": logit(2), "at_once": 2}
    together = path_energy(frozen, **ask)
    monkeypatch.setattr(energy, "SMALL", 0)  # as for large models
    apart, without = path_energy(frozen, **ask), path_energy(frozen, sums=False, **ask)
    assert together.sums is not None
    assert apart.sums is not None
    assert without.sums is None
    assert torch.allclose(together.sums, apart.sums, rtol=1e-12)
    for other in (apart, without):
        assert torch.allclose(together.energy, other.energy, rtol=1e-12)
        assert torch.allclose(together.standard_error, other.standard_error, rtol=1e-11)


def test_rank_view_equals_residuals_of_the_sums() -> None:
    model = Explicit(Shape(6, 2, "none", width=6, tokens=8, skip=1.0, mix="sdpa", biases=False))
    for parameter in model.parameters():
        parameter.data.mul_(0.5)  # small logits mix tokens well
    found = lengths(network(model, model.example(batch=2)))
    view = rank_view(found)
    assert view.residual.shape == (7, 2)
    for k in range(7):
        assert torch.equal(view.residual[k], relative_residual(found.by_length[k]))
    assert (view.residual[-1] < 0.5 * view.residual[0]).all()
    assert torch.allclose(view.share.sum(0), torch.ones(2, dtype=torch.float64), rtol=0, atol=1e-12)
    mask = torch.tensor([[True] * 8, [True] * 5 + [False] * 3])
    masked = rank_view(found, mask)
    assert torch.equal(masked.residual[:, 0], view.residual[:, 0])
    assert not torch.equal(masked.residual[:, 1], view.residual[:, 1])


def test_one_token_has_no_residual() -> None:
    model = Explicit(Shape(2, 2, "pre", tokens=1))
    view = rank_view(lengths(network(model, model.example())))
    assert float(view.residual.abs().max()) == 0
    assert float(view.share.abs().max()) == 0
