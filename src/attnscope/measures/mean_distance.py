"""How far from the query a head attends, sinks included.

A sink is far from most queries, so this number mostly says how much attention a sink takes. `span` leaves sinks out.
"""

from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.core.measure import measure
from attnscope.matrix.visibility import row_mean


@measure(
    title="Mean distance",
    summary="The mean distance from a query to the keys it attends to; it follows the sink, which `span` leaves out.",
    unit="tokens",
    low=0.0,
    high=131072.0,
    citation="arXiv:2010.11929",
    scope="attention",
    group="deep",
    bound="distance",
    sites=("self",),  # in cross-attention, positions of two sequences have no distance
    log=True,
)
def mean_distance(
    mean_distance: Float[Tensor, "batch head query"], query_mask: Bool[Tensor, "batch query"]
) -> Float[Tensor, "batch head"]:
    # sum_j A_ij |i - j|, averaged over the real rows i.
    return row_mean(mean_distance, query_mask)
