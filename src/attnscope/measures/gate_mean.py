"""The mean gate of a head: whether it is switched off without a sink."""

from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.core.measure import measure
from attnscope.matrix.visibility import accumulation_dtype, row_mean


@measure(
    title="Mean gate",
    summary="The mean gate on a head's output, or on the values it reads, if attention is gated.",
    unit="factor",
    citation="arXiv:2505.06708",
    scope="attention",
    sites=("self",),
)
def gate_mean(
    gate: Float[Tensor, "batch query gated_head gates"],
    mixed: Float[Tensor, "batch query head value_dim"],
    query_mask: Bool[Tensor, "batch query"],
) -> Float[Tensor, "batch head"]:
    # The mean over real tokens and over a head's gates (one, or one per coordinate). Heads that share values share
    # their gates. Without gates the measure is missing, because 1 would mean an open gate.
    gates = gate.to(accumulation_dtype(gate)).mean(dim=-1).transpose(1, 2)
    return row_mean(gates.repeat_interleave(mixed.shape[2] // gates.shape[1], dim=1), query_mask)
