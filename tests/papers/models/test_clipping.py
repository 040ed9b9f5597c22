"""Heads that clip (arXiv:2504.15956), against clipping itself and against the squared distances they stand for."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import attnscope
from attnscope.core.errors import RefusalError
from attnscope.papers.models.clipping import ClippingHeads, attention_network, error_bound, interpolating
from attnscope.papers.trials.clipped_networks import linears_of, relu_network, seeded

EXACT = torch.float64


def heads_of(
    width: int, heads: int, steps: int, beta: float, seed: int
) -> tuple[ClippingHeads, torch.Tensor, torch.Tensor]:
    """Return random heads, the expected outputs, and the inputs."""
    rng = torch.Generator().manual_seed(seed)
    weight, ends = (
        torch.randn(heads, width, generator=rng, dtype=EXACT),
        torch.rand(2, heads, generator=rng, dtype=EXACT),
    )
    shift = torch.randn(heads, generator=rng, dtype=EXACT)
    heads_made = ClippingHeads(weight, shift, -0.1 - ends[0], 0.1 + ends[1], steps, beta)
    x = torch.randn(3, 50, width, generator=rng, dtype=EXACT)
    return heads_made, (x @ weight.T + shift).clamp(-0.1 - ends[0], 0.1 + ends[1]), x


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 40), st.integers(0, 1000))
def test_a_sharp_head_is_wrong_by_half_a_step_at_most(width: int, heads: int, steps: int, seed: int) -> None:
    made, clipped, x = heads_of(width, heads, steps, 1e6, seed)
    # Softmax between the nearest anchors only moves the answer towards y; rounding is far below the step's 1e-9.
    assert bool(((made(x) - clipped).abs() <= made.half_step * (1 + 1e-9)).all())


@given(st.integers(1, 3), st.integers(1, 30), st.integers(0, 1000))
def test_logits_are_squared_distances_up_to_a_constant_of_the_row(width: int, steps: int, seed: int) -> None:
    made, _, x = heads_of(width, 1, steps, 1.0, seed)
    step = 2 * made.half_step[0]
    weight = made.keys[0, 1, :width] / 2
    shift = (2 * made.anchors[0, 0] + step - made.keys[0, 1, width]) / 2
    y = (x @ weight + shift)[..., None]
    squares = -((y - made.anchors[0]) ** 2) / step
    found = made.logits(x)[:, 0]
    size = float(squares.abs().max() + found.abs().max())
    # Some ten roundings on each side, of terms no larger than these.
    assert float(((found - found[..., :1]) - (squares - squares[..., :1])).abs().max()) <= 40 * 2.0**-53 * size


def test_heads_in_place_of_units_stay_within_the_bound_and_come_nearer() -> None:
    network = seeded(lambda: relu_network((3, 8, 6, 2)), 0)
    assert isinstance(network, nn.Sequential)
    x = torch.randn(4, 60, 3, generator=torch.Generator().manual_seed(1), dtype=EXACT)
    before = float("inf")
    with torch.no_grad():
        for steps in (4, 16, 64, 256):
            made = attention_network(linears_of(network), x, steps, beta=100.0)
            wrong = (made(x) - network(x)).abs().amax((0, 1))
            assert bool((wrong <= error_bound(made, linears_of(network))).all())
            assert float(wrong.max()) < before
            before = float(wrong.max())


def test_a_function_between_knots_is_linear_and_exact_at_them() -> None:
    knots = torch.tensor([-2.0, -1.0, 0.5, 3.0], dtype=EXACT)
    values = torch.tensor([1.0, -1.0, 2.0, 0.0], dtype=EXACT)
    first, last = interpolating(knots, values)
    with torch.no_grad():
        at = last(first(knots[:, None]).relu())[:, 0]
        middle = last(first(((knots[1:] + knots[:-1]) / 2)[:, None]).relu())[:, 0]
    torch.testing.assert_close(at, values, atol=1e-14, rtol=0)
    torch.testing.assert_close(middle, (values[1:] + values[:-1]) / 2, atol=1e-14, rtol=0)


def test_a_network_of_heads_can_be_scanned() -> None:
    network = seeded(lambda: relu_network((2, 5, 4, 1)), 0)
    assert isinstance(network, nn.Sequential)
    x = torch.randn(2, 9, 2, generator=torch.Generator().manual_seed(1), dtype=EXACT)
    survey = attnscope.scan(attention_network(linears_of(network), x, 16, 1.0), [{"vectors": x}])
    assert {key.measure for key in survey.cells} >= {"entropy"}
    assert sum(1 for key in survey.cells if key.measure == "entropy") == 2  # two layers of heads


def test_impossible_heads_are_refused() -> None:
    one = torch.ones(1, dtype=EXACT)
    for steps, beta, high in ((0, 1.0, one), (4, 0.0, one), (4, 1.0, -one)):
        with pytest.raises(RefusalError, match="at least 1 step"):
            ClippingHeads(one[None], one, 0 * one, high, steps, beta)
    with pytest.raises(RefusalError, match="two linear maps"):
        attention_network([nn.Linear(2, 2)], torch.zeros(1, 1, 2), 4, 1.0)
