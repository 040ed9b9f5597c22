"""Values of heads and MLPs against the definition over all coalitions, and against each other."""

from itertools import combinations
from math import factorial

import numpy as np
import pytest
import torch

from attnscope.core.errors import RefusalError
from attnscope.papers.models.nano import Config, Nano
from attnscope.papers.models.nano_paths import network_of
from attnscope.pathways.heads import head_table
from attnscope.pathways.lengths import by_length
from attnscope.pathways.network import Edges, Network, edges, number_of_paths
from attnscope.pathways.shapley import shapley
from attnscope.pathways.targets import Target, class_logit, logit, logit_difference, residual_norm, stream_norm
from tests.pathways.enumeration import Explicit, Norm, Path, Shape, network, paths

CASES = [
    Shape(3, 2, "pre", mlp=5),
    Shape(3, 2, "post", mlp=5, mix="bmm", activation="silu"),
    Shape(3, 2, "none", mlp=5, mix="einsum", activation="relu", skip=1.0),
]


def players_of(path: Path, stages: int) -> frozenset[tuple[int, str]]:
    """(stage, name): a path that began late has fewer names than there are stages."""
    begun = stages - len(path.names)
    return frozenset((begun + i, n) for i, n in enumerate(path.names) if n == "mlp" or n.startswith("h"))


def by_definition(model: Explicit, target: Target, only_heads: bool) -> tuple[dict[tuple[int, str], float], float]:
    """sum over coalitions S without p of |S|! (n - |S| - 1)! / n! (worth(S + p) - worth(S)), and worth of all."""
    x, stages = model.example(), 2 * model.shape.layers
    constant = float(target(model.out(torch.zeros_like(x))))
    worth_of_path = []
    for path in paths(model, x):
        used = frozenset(p for p in players_of(path, stages) if not (only_heads and p[1] == "mlp"))
        value = float(target(model.out(torch.from_numpy(path.value)))) - constant
        worth_of_path.append((used, value))
    every = sorted(set().union(*(used for used, _ in worth_of_path)))
    bit = {player: 1 << i for i, player in enumerate(every)}
    masks = np.array([sum(bit[p] for p in used) for used, _ in worth_of_path])
    values = np.array([value for _, value in worth_of_path])
    n = len(every)
    worth = np.array([values[(masks & ~s) == 0].sum() for s in range(1 << n)])
    weight = [factorial(k) * factorial(n - k - 1) / factorial(n) for k in range(n)]
    shares = {}
    for player in every:
        others = [bit[p] for p in every if p != player]
        shares[player] = sum(
            weight[k] * (worth[sum(some) | bit[player]] - worth[sum(some)])
            for k in range(n)
            for some in combinations(others, k)
        )
    return shares, float(worth[-1]) + constant


@pytest.mark.parametrize("shape", CASES, ids=str)
def test_heads_and_mlps_against_all_coalitions(shape: Shape) -> None:
    model = Explicit(shape)
    target = logit_difference(3, 1)
    with torch.no_grad():
        expected, whole = by_definition(model, target, only_heads=False)
    assert len(expected) == 9
    found = shapley(network(model, model.example()), target, at_once=3)
    for (stage, name), value in expected.items():
        mine = found.mlps[stage // 2][0] if name == "mlp" else found.heads[stage // 2][int(name[1:])]
        assert abs(float(mine) - value) <= 1e-12 * max(1, abs(whole))
    assert abs(found.everything - whole) <= 1e-12 * max(1, abs(whole))
    assert abs(found.nothing + found.total - found.everything) <= 1e-12 * max(1, abs(whole))


@pytest.mark.parametrize("shape", CASES, ids=str)
def test_shapley_of_heads_agrees_with_the_head_table(shape: Shape) -> None:
    model = Explicit(shape)
    target = logit(2, position=1)
    frozen = network(model, model.example())
    table = head_table(frozen, target)
    quadrature = shapley(frozen, target, players="heads")
    assert (table.shapley - torch.stack(quadrature.heads)).abs().max() <= 1e-12
    assert all(len(values) == 0 for values in quadrature.mlps)
    with torch.no_grad():
        expected, whole = by_definition(model, target, only_heads=True)
    for (stage, name), value in expected.items():
        assert abs(float(table.shapley[stage // 2, int(name[1:])]) - value) <= 1e-12 * max(1, abs(whole))
    assert abs(table.total - float(target(frozen.output))) <= 1e-12
    assert abs(float(table.lengths[0]) - quadrature.nothing) <= 1e-12


def test_head_table_against_enumeration() -> None:
    model = Explicit(Shape(4, 3, "post", mlp=5))
    frozen, target = network(model, model.example()), logit(0)
    table = head_table(frozen, target)
    expected = torch.zeros(4, 3, 5, dtype=torch.float64)
    row = model.out.weight[0].detach().numpy()
    for path in paths(model, model.example()):
        share = path.value[0, -1] @ row
        for stage, name in players_of(path, 8):
            if name != "mlp":
                expected[stage // 2, int(name[1:]), path.attention] += share
    assert (table.contributions - expected).abs().max() <= 1e-12 * expected.abs().max()


@pytest.mark.parametrize("norm", ["none", "pre", "post"])
def test_network_without_skip_has_only_longest_paths(norm: Norm) -> None:
    """Without constants and skips, sums contain only the longest paths."""
    config = Config(vocab_size=9, width=8, heads=2, layers=3, norm=norm, norm_kind="rms", skip=0, biases=False)
    made = Nano(config, seed=1)
    frozen = network_of(made.double().eval(), {"input_ids": torch.tensor([[1, 5, 3, 2]])})
    target = logit(4)
    table = head_table(frozen, target)
    whole = float(target(frozen.output))
    assert table.lengths[:3].abs().max() == 0
    assert float(table.lengths[3]) == pytest.approx(whole, rel=1e-12)
    assert table.contributions[:, :, :3].abs().max() == 0
    assert float(table.shapley.sum()) == pytest.approx(whole, rel=1e-12)
    quadrature = torch.stack(shapley(frozen, target, players="heads").heads)
    assert (table.shapley - quadrature).abs().max() <= 1e-12 * abs(whole)
    assert number_of_paths(frozen) == (0, 0, 0, 8)


def test_targets() -> None:
    model = Explicit(Shape(3, 2, "pre"))
    frozen = network(model, model.example(batch=2))
    assert abs(head_table(frozen, stream_norm(frozen)).total - float(frozen.streams[-1].norm())) <= 1e-12
    residual = frozen.streams[-1] - frozen.streams[-1].mean(1, keepdim=True)
    assert abs(head_table(frozen, residual_norm(frozen)).total - float(residual.norm())) <= 1e-12
    assert float(logit(4)(frozen.output)) == pytest.approx(float(frozen.output[:, -1, 4].sum()), abs=1e-14)
    assert float(class_logit(1)(frozen.output[:, 0])) == pytest.approx(float(frozen.output[:, 0, 1].sum()), abs=1e-14)
    assert logit(4, word="Paris").name == "logit of 'Paris' at the last token"
    assert logit_difference(4, 2, 1).name == "logit of 4 minus 2 at position 1"
    with pytest.raises(RefusalError, match="entries 0 to 4"):
        head_table(frozen, logit(5))
    with pytest.raises(RefusalError, match="3 tokens"):
        logit(0, position=3)(frozen.output)
    with pytest.raises(RefusalError, match="class_logit"):
        logit(0)(frozen.output[:, 0])
    alone = Network("one", (torch.ones(1, 1, 4),), (), lambda x: x, torch.ones(1, 1, 4))
    with pytest.raises(RefusalError, match="longer text"):
        residual_norm(alone)


@pytest.mark.parametrize("shape", CASES, ids=str)
def test_the_worth_of_nobody_need_not_be_computed_again(shape: Shape) -> None:
    """It is what paths without any edge contribute. With it, one node of the quadrature is left out."""
    model, target = Explicit(shape), logit(1)
    frozen = network(model, model.example())
    nothing = float(by_length(frozen, target, sources=False).lengths[0])
    whole, known = shapley(frozen, target), shapley(frozen, target, nothing=nothing)
    assert nothing == pytest.approx(whole.nothing, abs=1e-12)
    for one, other in zip((*whole.heads, *whole.mlps), (*known.heads, *known.mlps), strict=True):
        assert torch.allclose(one, other, rtol=1e-12, atol=1e-13)
    assert known.total == pytest.approx(known.everything - known.nothing, abs=1e-12)


@pytest.mark.parametrize("shape", [*CASES, Shape(3, 2, "post", mlp=None)], ids=str)
def test_a_head_table_knows_the_edges_of_every_block(shape: Shape) -> None:
    model = Explicit(shape)
    frozen = network(model, model.example())
    found = head_table(frozen, logit(1)).edges
    assert found == edges(frozen)
    assert found == (Edges(2, int(shape.mlp is not None), True),) * 3


@pytest.mark.parametrize("biases", [True, False])
def test_a_head_table_knows_which_skips_are_cut(biases: bool) -> None:
    """A constant that begins in a block has length zero, which is no path through the skip."""
    config = Config(vocab_size=9, width=8, heads=2, layers=3, norm="pre", skip=0, mlp=None, biases=biases)
    frozen = network_of(Nano(config, seed=1).double().eval(), {"input_ids": torch.tensor([[1, 5, 3, 2]])})
    found = head_table(frozen, logit(4)).edges
    assert found == edges(frozen) == (Edges(2, 0, False),) * 3
