"""How far the last step moved each projection of a block, relative to its size."""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.measure import measure
from attnscope.matrix.visibility import accumulation_dtype

PROJECTIONS = ("query", "key", "value", "output")


@measure(
    title="Update ratio",
    summary="The size of the last update of the query, key, value and output projections, relative to their own size.",
    unit="ratio",
    citation="arXiv:2309.14322",
    scope="training",
    group="training",
    parts=PROJECTIONS,
    log=True,
)
def update_ratio(
    weight: Mapping[str, Float[Tensor, "inner outer"]], weight_before: Mapping[str, Float[Tensor, "inner outer"]]
) -> dict[str, Float[Tensor, ""]]:
    # ||W_t - W_(t-1)|| / ||W_(t-1)|| in the Frobenius norm; about 1e-3 in a healthy run. Weights that did not
    # move, zeros included, have ratio 0; weights that leave zero have no size to compare with, so their ratio is NaN.
    known = next(iter(weight.values()), torch.zeros(()))
    dtype = accumulation_dtype(known)
    missing = torch.full((), torch.nan, dtype=dtype, device=known.device)
    return {
        part: _ratio(weight[part], weight_before[part], dtype) if part in weight and part in weight_before else missing
        for part in PROJECTIONS
    }


def _ratio(now: Tensor, before: Tensor, dtype: torch.dtype) -> Float[Tensor, ""]:
    size = torch.linalg.vector_norm(before, dtype=dtype)
    change: Tensor = torch.linalg.vector_norm(now.to(dtype) - before.to(dtype))
    return change / torch.where(size == 0, torch.where(change == 0, 1.0, torch.nan), size)
