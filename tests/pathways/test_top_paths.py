"""The largest paths against a list of all of them."""

import numpy as np
import pytest
import torch

from attnscope.core.errors import RefusalError
from attnscope.pathways.energy import path_energy
from attnscope.pathways.heads import head_table
from attnscope.pathways.lengths import lengths
from attnscope.pathways.shapley import shapley
from attnscope.pathways.targets import logit
from attnscope.pathways.top_paths import top_paths
from tests.pathways.enumeration import Explicit, Shape, network, paths

Heads = tuple[tuple[int, int], ...]


def every_contribution(model: Explicit, entry: int) -> dict[Heads, float]:
    """Return the contributions of all chains of heads, with MLPs as part of their blocks."""
    row = model.out.weight[entry].detach().numpy()
    stride = 1 if model.shape.mlp is None else 2
    found: dict[Heads, float] = {}
    for path in paths(model, model.example()):
        if path.source == 0:
            heads = tuple((i, int(n[1:])) for i, n in enumerate(path.names[::stride]) if n[0] == "h")
            found[heads] = found.get(heads, 0.0) + float(path.value[0, -1] @ row)
    return found


@pytest.mark.parametrize(
    "shape",
    [Shape(5, 4, "pre"), Shape(4, 3, "post", mlp=5, mix="bmm"), Shape(5, 4, "none", mix="einsum", skip=0.5)],
    ids=str,
)
def test_against_enumeration(shape: Shape) -> None:
    model = Explicit(shape)
    frozen = network(model, model.example())
    every = every_contribution(model, 2)
    ranked = sorted(every, key=lambda heads: -abs(every[heads]))
    whole = top_paths(frozen, logit(2), count=20, width=len(every))
    assert whole.exact
    assert whole.missed == pytest.approx(abs(every[ranked[19]]), rel=1e-12)
    assert [path.heads for path in whole.paths] == ranked[:20]
    contributions = np.array([path.contribution for path in whole.paths])
    expected = np.array([every[heads] for heads in ranked[:20]])
    assert np.abs(contributions - expected).max() <= 1e-12 * np.abs(expected).max()

    narrow = top_paths(frozen, logit(2), count=5, width=40, draws=64)
    assert not narrow.exact
    assert [path.heads for path in narrow.paths] == ranked[:5]
    assert abs(every[ranked[5]]) <= narrow.missed


def test_path_begins_at_its_largest_token() -> None:
    model = Explicit(Shape(3, 2, "pre", mix="sdpa"))
    x = model.example()
    found = top_paths(network(model, x), logit(1), count=27, width=27).paths
    assert len({path.heads for path in found}) == 27
    straight = next(path for path in found if path.heads == ())
    row = model.out.weight[1].detach()
    assert straight.token == 2  # in a causal network the last token contributes directly to itself
    assert straight.of_token == pytest.approx(straight.contribution, rel=1e-12)
    assert straight.contribution == pytest.approx(float(0.8**3 * x[0, 2] @ row), rel=1e-12)


def test_too_few_or_too_many_paths_are_refused() -> None:
    model = Explicit(Shape(2, 2, "pre"))
    frozen = network(model, model.example())
    for count in (0, 40):
        with pytest.raises(RefusalError, match="ask for 1 to 32"):
            top_paths(frozen, logit(1), count=count)


def test_same_seed_same_paths() -> None:
    model = Explicit(Shape(4, 3, "post"))
    frozen = network(model, model.example())
    one, other = (top_paths(frozen, logit(1), count=4, width=6, seed=5) for _ in range(2))
    assert one == other


def test_tensors_are_made_on_the_device_of_the_network() -> None:
    """A tensor created on the default device would fail in operations with the network's own tensors."""
    model = Explicit(Shape(3, 2, "pre", mlp=5))
    frozen = network(model, model.example())
    expected = head_table(frozen, logit(1)).shapley
    with torch.device("meta"):
        values = head_table(frozen, logit(1)).shapley
        players = shapley(frozen, logit(1))
        energy = path_energy(frozen, 4, target=logit(1))
        largest = top_paths(frozen, logit(1), count=3)
        sums = lengths(frozen).by_length
    assert torch.equal(values, expected)
    assert {t.device.type for t in (values, players.heads[0], energy.energy, sums)} == {"cpu"}
    assert len(largest.paths) == 3
