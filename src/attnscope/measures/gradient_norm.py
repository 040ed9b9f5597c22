"""Whether the attention of a block still learns: the norm of the gradient of each of its four projections."""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.measure import measure
from attnscope.matrix.visibility import accumulation_dtype

PROJECTIONS = ("query", "key", "value", "output")


@measure(
    title="Gradient norm",
    summary="The Frobenius norm of the gradient of the query, key, value and output projections of a block.",
    unit="loss per weight",
    citation="arXiv:2206.03126",
    scope="training",
    group="training",
    parts=PROJECTIONS,
    log=True,
)
def gradient_norm(gradient: Mapping[str, Float[Tensor, "inner outer"]]) -> dict[str, Float[Tensor, ""]]:
    # If tokens are alike, attention is the same whatever the logits are: dA/ds is A (diag - A) applied to equal values,
    # so the gradients at W_Q and W_K vanish while the gradients at W_V and W_O remain (arXiv:2206.03126, Theorem 3.1).
    known = next(iter(gradient.values()), torch.zeros(()))
    dtype = accumulation_dtype(known)
    missing = torch.full((), torch.nan, dtype=dtype, device=known.device)
    return {
        part: torch.linalg.vector_norm(gradient[part], dtype=dtype) if part in gradient else missing
        for part in PROJECTIONS
    }
