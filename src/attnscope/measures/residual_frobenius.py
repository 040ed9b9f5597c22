"""The distance of the stream to the subspace where all tokens are equal, d_M of the over-smoothing papers."""

from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.core.measure import measure
from attnscope.matrix import residual


@measure(
    title="Residual (Frobenius)",
    summary="The Frobenius distance of the stream to the nearest stream whose tokens are all equal.",
    unit="stream units",
    citation="arXiv:2202.08625",
    scope="stream",
    log=True,
)
def residual_frobenius(
    stream: Float[Tensor, "batch token width"], token_mask: Bool[Tensor, "batch token"]
) -> Float[Tensor, " batch"]:
    # d_M(X) = ||(I - 11^T/n) X||_F grows like sqrt(n) with the length n: compare blocks, not corpora.
    return residual.residual_frobenius(stream, token_mask)
