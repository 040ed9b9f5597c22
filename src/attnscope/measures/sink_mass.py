"""How much of a head's attention falls on the first token, and whether that makes the head a sink."""

from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.core.card import Alarm
from attnscope.core.limits import SINK_MASS
from attnscope.core.measure import measure
from attnscope.matrix.visibility import row_mean


@measure(
    title="Sink mass",
    summary=f"The mean attention on the first real key, and the share of sequences in which it exceeds {SINK_MASS}.",
    unit="share",
    low=0.0,
    high=1.0,
    citation="arXiv:2603.05498",
    scope="attention",
    parts=("value", "rate"),
    alarm=Alarm(">", SINK_MASS, "the head is an attention sink"),
)
def sink_mass(
    first_key_mass: Float[Tensor, "batch head query"], query_mask: Bool[Tensor, "batch query"]
) -> dict[str, Float[Tensor, "batch head"]]:
    # alpha_k = sum_i A_ik / (n - k) for k = 0; uniform causal attention has alpha_0 = H_n / n, far below 0.3.
    alpha = row_mean(first_key_mass, query_mask)
    return {"value": alpha, "rate": (alpha > SINK_MASS).to(alpha.dtype)}
