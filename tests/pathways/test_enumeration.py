"""Graded sums against every single path."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from attnscope.pathways.graded import Count
from attnscope.pathways.lengths import lengths, mean_path
from attnscope.pathways.network import number_of_paths
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
    """[source, attention, mlp, *shape] by adding up paths one by one; every way of counting."""
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
    """To 1e-12 of the largest entry, and nothing where the other has no place."""
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
    assert (mean_path(lengths(frozen)) - means).abs().max() <= 1e-12 * means.abs().max()


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
