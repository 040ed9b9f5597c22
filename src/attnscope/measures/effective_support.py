"""The number of keys that a query effectively uses."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.core.measure import measure
from attnscope.matrix.visibility import row_mean


@measure(
    title="Effective support",
    summary="The number of keys that a query attends to, as the inverse of the sum of squares of its row.",
    unit="keys",
    low=0.0,
    high=131072.0,
    citation="arXiv:2402.02098",
    scope="attention",
    bound="keys",
    log=True,
)
def effective_support(
    row_sum_squares: Float[Tensor, "batch head query"],
    row_mass: Float[Tensor, "batch head query"],
    query_mask: Bool[Tensor, "batch query"],
) -> Float[Tensor, "batch head"]:
    # A row spread evenly over m keys has sum of squares mass^2/m, whatever its mass. (With a learned sink, rows sum to
    # less than 1, and 1/sum would count more keys than there are.) A row without mass uses no key.
    squares = row_sum_squares.to(torch.promote_types(row_sum_squares.dtype, torch.float32))
    empty = squares == 0
    support = row_mass.to(squares.dtype).square() / squares.masked_fill(empty, 1.0)
    return row_mean(support.masked_fill(empty, 0.0), query_mask)
