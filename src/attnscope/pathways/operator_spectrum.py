"""The largest singular values of T, by Lanczos iteration on T^T T with products alone (scipy's ARPACK)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.pathways.affine import Affine

# ARPACK stops when an eigenvalue of T^T T is known to this share of itself: singular values then to half of it. Below
# what rounding leaves in a product it would never stop.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}


def as_linear_operator(affine: Affine) -> Any:
    """On flat vectors."""
    from scipy.sparse.linalg import LinearOperator

    enters, leaves = affine.enters, affine.leaves

    def times(vectors: Any) -> Any:
        given = torch.as_tensor(np.asarray(vectors).T.reshape(-1, *enters.shape)).to(enters)
        return affine.times(given).flatten(1).T.double().cpu().numpy()

    def transposed_times(answers: Any) -> Any:
        given = torch.as_tensor(np.asarray(answers).T.reshape(-1, *leaves.shape)).to(enters)
        return affine.transposed_times(given).flatten(1).T.double().cpu().numpy()

    return LinearOperator(
        (leaves.numel(), enters.numel()),
        matvec=lambda one: times(one).reshape(-1),
        rmatvec=lambda one: transposed_times(one).reshape(-1),
        matmat=times,
        rmatmat=transposed_times,
        dtype=np.float64,
    )


def singular_values(affine: Affine, k: int, seed: int) -> Float[Tensor, " k"]:
    """The k largest, largest first."""
    from scipy.sparse.linalg import svds

    most = min(affine.leaves.numel(), affine.enters.numel()) - 1
    if not 1 <= k <= most:
        raise RefusalError(f"Lanczos iteration finds 1 to {most} singular values here, not {k}: ask for as many.")
    start = np.random.default_rng(seed).standard_normal(most + 1)
    found = svds(
        as_linear_operator(affine),
        k=k,
        tol=TOLERANCE[affine.enters.dtype],
        v0=start,
        return_singular_vectors=False,
        solver="arpack",
    )
    return torch.from_numpy(np.sort(found)[::-1].copy()).to(affine.enters)
