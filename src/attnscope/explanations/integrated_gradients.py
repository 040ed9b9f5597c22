"""Integrated gradients (arXiv:1703.01365): the gradient along the straight way from an input that says nothing.

    (e - b) * integral from 0 to 1 of d answer / d e at b + t (e - b) dt

The numbers of all tokens add up to answer(e) - answer(b) (completeness). The integral is taken by Gauss's rule, which
is exact for polynomials of degree 2 POINTS - 1 and so needs fewer points than equal steps.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.explanation import explanation

POINTS = 32
AT_ONCE = 8  # points that go through the model together


@explanation(
    title="Integrated gradients",
    summary="The gradient along the way from an input that says nothing, added up.",
    citation="arXiv:1703.01365",
    formula="<e - b, integral of d answer / d e from b to e>",
    cost=f"{POINTS} backward passes",
    signed=True,
    adds_up="the answer less that for an input that says nothing",
)
def integrated_gradients(
    embedding: dict[str, Float[Tensor, "token width"]],
    baseline: dict[str, Float[Tensor, "token width"]],
    ask: Callable[..., Float[Tensor, " batch"]],
) -> dict[str, Float[Tensor, " token"]]:
    places, weights = (torch.from_numpy(side) for side in np.polynomial.legendre.leggauss(POINTS))
    first = next(iter(embedding.values()))
    places, weights = ((places + 1) / 2).to(first), (weights / 2).to(first)
    total = {stack: torch.zeros_like(vectors) for stack, vectors in embedding.items()}
    for begin in range(0, POINTS, AT_ONCE):
        t = places[begin : begin + AT_ONCE, None, None]
        on_the_way = {
            stack: torch.lerp(baseline[stack][None], vectors[None], t).requires_grad_()
            for stack, vectors in embedding.items()
        }
        found = torch.autograd.grad(ask(on_the_way).sum(), list(on_the_way.values()))
        for stack, gradient in zip(on_the_way, found, strict=True):
            total[stack] += (gradient * weights[begin : begin + AT_ONCE, None, None]).sum(0)
    return {stack: ((vectors - baseline[stack]) * total[stack]).sum(-1) for stack, vectors in embedding.items()}
