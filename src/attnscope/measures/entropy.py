"""How widely a head attends: the entropy of its rows."""

from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.core.card import Alarm
from attnscope.core.limits import ENTROPY_FLOOR
from attnscope.core.measure import measure
from attnscope.matrix.visibility import row_mean


@measure(
    title="Attention entropy",
    summary="The mean entropy of a head's rows: 0 if queries attend to one key, ln n if they attend to all alike.",
    unit="nats",
    low=0.0,
    high=12.0,  # ln of 131072 keys is 11.8
    citation="arXiv:2303.06296",
    scope="attention",
    bound="entropy",
    alarm=Alarm("<", ENTROPY_FLOOR, "most queries attend to one key: entropy collapse"),
)
def entropy(
    row_entropy: Float[Tensor, "batch head query"],
    row_mass: Float[Tensor, "batch head query"],
    query_mask: Bool[Tensor, "batch query"],
) -> Float[Tensor, "batch head"]:
    # -sum_j p_j ln p_j of p = A_i / m, the row as a distribution over keys, averaged over the real rows i. Its mass m
    # is 1 unless there is a learned sink; then -sum_j A_ij ln A_ij = m (H(p) - ln m) would be low for a row with most
    # of its mass on the sink.
    mass = row_mass.to(row_entropy.dtype)
    empty = mass == 0
    whole = mass.masked_fill(empty, 1.0)
    return row_mean((row_entropy / whole + whole.log()).masked_fill(empty, 0.0).clamp_min(0.0), query_mask)
