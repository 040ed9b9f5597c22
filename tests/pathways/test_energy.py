"""Energies of paths against enumeration; what long paths do to rank."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnscope.core.errors import RefusalError
from attnscope.matrix.residual import relative_residual
from attnscope.pathways.lengths import lengths, mean_path, path_energy, rank_view
from attnscope.pathways.targets import logit
from tests.pathways.enumeration import Explicit, Shape, network, paths


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
    found = path_energy(frozen, draws=400, seed=3, at_once=400)
    aimed = path_energy(frozen, draws=400, seed=3, at_once=400, target=logit(2))
    for estimate, truth in ((found, energy), (aimed, of_logit)):
        off = (estimate.energy - torch.from_numpy(truth)).abs()
        assert (off <= 4 * estimate.standard_error + 1e-12 * float(truth.max())).all()
        assert (estimate.standard_error[1:] < 0.3 * torch.from_numpy(truth)[1:]).all()
    assert found.energy[0] == pytest.approx(energy[0], rel=1e-12)  # one path, no sign
    sums = lengths(frozen).stream.parts[0].sum(1).square().flatten(1).sum(1)
    assert torch.allclose(found.sums, sums, rtol=1e-12)


def test_energy_refuses_one_draw_and_repeats_with_its_seed() -> None:
    model = Explicit(Shape(3, 2, "pre"))
    frozen = network(model, model.example())
    with pytest.raises(RefusalError, match="two draws"):
        path_energy(frozen, draws=1)
    one, other = (path_energy(frozen, draws=5, seed=1, at_once=k).energy for k in (5, 5))
    assert torch.equal(one, other)


def test_rank_view() -> None:
    model = Explicit(Shape(6, 2, "none", width=6, tokens=8, skip=1.0, mix="sdpa", biases=False))
    for parameter in model.parameters():
        parameter.data.mul_(0.5)  # gentle logits mix well
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


def test_mean_path_needs_sources() -> None:
    model = Explicit(Shape(2, 2, "pre"))
    frozen = network(model, model.example())
    with pytest.raises(RefusalError, match="sources kept apart"):
        mean_path(lengths(frozen, sources=False))
    with pytest.raises(RefusalError, match="sources kept apart"):
        mean_path(lengths(frozen, "edges"))
