"""Sigma-reparametrisation: every projection divided by its largest singular value, times one trained number.

W <- gain W / sigma_1(W): one number per matrix then limits how sharp attention can become, which prevents entropy
collapse (arXiv:2303.06296). The singular value comes from a full decomposition, so that its gradient is exact.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.core.variant import variant


def start(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Start with each matrix's own largest singular value."""
    return {f"{name}_gain": sigma(weight) for name, weight in weights.items() if weight.ndim == 2}


def sigma(weight: Float[Tensor, "out in"]) -> Float[Tensor, ""]:
    """Return the largest singular value."""
    found: Tensor = torch.linalg.matrix_norm(weight.to(torch.promote_types(weight.dtype, torch.float32)), ord=2)
    return found.to(weight.dtype)


@variant(
    kind="weights",
    title="Sigma-reparam: bounded spectral norms",
    summary="Every projection has spectral norm 1 times one trained number.",
    citation="arXiv:2303.06296",
    formula="W <- g W / sigma_1(W)",
    cost="none",
    parameters={"NAME_gain": "one number for each matrix"},
    start=start,
    keeps="g = sigma_1(W) of the trained matrix",
)
def sigma_reparam(weights: Mapping[str, Tensor], **gains: Tensor) -> dict[str, Tensor]:
    """Return the weights with the matrices that have a gain divided by their largest singular value and scaled."""
    unknown = [name for name in gains if name.removesuffix("_gain") not in weights]
    if unknown:
        raise RefusalError(f"There is no matrix for the gain '{unknown[0]}': gains are called NAME_gain.")
    return {
        name: weight / sigma(weight) * gains[f"{name}_gain"] if f"{name}_gain" in gains else weight
        for name, weight in weights.items()
    }
