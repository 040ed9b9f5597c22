"""Integrated gradients (arXiv:1703.01365): the gradient along the straight line from an input without information.

    (e - b) * integral from 0 to 1 of d answer / d e at b + t (e - b) dt

The scores of all tokens add up to answer(e) - answer(b) (completeness). The integral is computed by Gauss's rule, which
is exact for polynomials of degree 2 points - 1 and so needs fewer points than equal steps. If the sum is off by more
than NEAR (norms make the line steep near an input without information), more points are used.
"""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.explanation import explanation
from attnscope.matrix.relevance import TokenScores, TokenVectors

POINTS = (32, 64)
NEAR = 0.01  # tolerance, as a share of answer(e) - answer(b)
AT_ONCE = 8  # points that go through the model together


@explanation(
    title="Integrated gradients",
    summary="The gradient, integrated along the line from a neutral input.",
    citation="arXiv:1703.01365",
    formula="<e - b, integral of d answer / d e from b to e>",
    cost=f"{POINTS[0]} backward passes, {POINTS[-1]} more if these do not suffice",
    signed=True,
    adds_up="the answer minus that for a neutral input",
)
def integrated_gradients(
    embedding: TokenVectors, baseline: TokenVectors, ask: Callable[..., Float[Tensor, " batch"]]
) -> TokenScores:
    with torch.no_grad():
        last, first = (ask({stack: x[None] for stack, x in side.items()}) for side in (embedding, baseline))
    wanted = float(last - first)
    found: dict[str, Tensor] = {}
    for points in POINTS:
        gradient = _mean_gradient(embedding, baseline, ask, points)
        found = {stack: ((own - baseline[stack]) * gradient[stack]).sum(-1) for stack, own in embedding.items()}
        if abs(sum(float(scores.sum()) for scores in found.values()) - wanted) <= NEAR * abs(wanted):
            break
    return found


def _mean_gradient(
    embedding: TokenVectors, baseline: TokenVectors, ask: Callable[..., Float[Tensor, " batch"]], points: int
) -> TokenVectors:
    """Return the mean gradient over the line, by Gauss's rule."""
    first = next(iter(embedding.values()))
    places, weights = (torch.from_numpy(side).to(first) for side in np.polynomial.legendre.leggauss(points))
    total = {stack: torch.zeros_like(own) for stack, own in embedding.items()}
    for begin in range(0, points, AT_ONCE):
        t = (places[begin : begin + AT_ONCE, None, None] + 1) / 2
        points_on_line = {
            stack: torch.lerp(baseline[stack][None], own[None], t).requires_grad_() for stack, own in embedding.items()
        }
        gradients = torch.autograd.grad(ask(points_on_line).sum(), list(points_on_line.values()))
        for stack, gradient in zip(points_on_line, gradients, strict=True):
            total[stack] += (gradient * weights[begin : begin + AT_ONCE, None, None] / 2).sum(0)
    return total
