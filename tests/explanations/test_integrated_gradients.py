"""Integrated gradients: exact on polynomials, and complete on models."""

import pytest
import torch
from torch import Tensor

from attnscope.explanations.integrated_gradients import POINTS, integrated_gradients


def test_a_polynomial_by_hand() -> None:
    """answer = a^3 b along (t a, t b): each gets the integral of its own derivative, 3/4 and 1/4 of a^3 b."""
    vectors = {"model": torch.tensor([[2.0], [5.0]], dtype=torch.float64)}

    def ask(given: dict[str, Tensor]) -> Tensor:
        a, b = given["model"][:, 0, 0], given["model"][:, 1, 0]
        return a**3 * b

    nothing = {"model": torch.zeros(2, 1, dtype=torch.float64)}
    found = integrated_gradients(embedding=vectors, baseline=nothing, ask=ask)["model"]
    assert found.tolist() == pytest.approx([30.0, 10.0], abs=1e-11)


def test_an_exponential_is_complete() -> None:
    """Gauss's rule on an entire function: with 32 points its error is far below rounding."""
    assert POINTS[0] >= 32
    vectors = {"model": torch.tensor([[0.5, -1.0], [1.0, 0.25]], dtype=torch.float64)}
    start = {"model": torch.full((2, 2), 0.1, dtype=torch.float64)}

    def ask(given: dict[str, Tensor]) -> Tensor:
        return given["model"].sum((1, 2)).exp() + given["model"][:, 0, 1].sin()

    found = integrated_gradients(embedding=vectors, baseline=start, ask=ask)["model"]
    ends = [float(ask({"model": side["model"][None]})) for side in (vectors, start)]
    assert float(found.sum()) == pytest.approx(ends[0] - ends[1], abs=1e-12)
