"""What the weights alone say about where a head attends: the eigenvalues of W_Q W_K^T."""

from jaxtyping import Float
from torch import Tensor

from attnscope.core.measure import measure
from attnscope.matrix import spectrum


@measure(
    title="QK spectrum",
    summary="Mean and variance of the eigenvalues of W_Q W_K^T (the variance is negative where they are mostly"
    " imaginary, as in a rotation), and eta, its likeness to the identity.",
    unit="eigenvalue",
    low=float("-inf"),
    citation="arXiv:2402.02098",
    scope="weights",
    sites=("self",),  # eigenvalues need queries and keys to come from the same stream
    parts=("mean", "variance", "eta"),
)
def qk_spectrum(
    query_weight: Float[Tensor, "head width dim"], key_weight: Float[Tensor, "head width dim"]
) -> dict[str, Float[Tensor, " head"]]:
    # A non-zero mean with little variance makes attention local; rotary positions and query norms come later.
    mean, variance, eta = spectrum.qk_spectrum(query_weight, key_weight)
    return {"mean": mean, "variance": variance, "eta": eta}
