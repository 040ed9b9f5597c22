"""How far a head looks, sinks left out: the distances within which half and most of its attention lies."""

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.measure import measure

HALF, MOST = 0.5, 0.95


@measure(
    title="Span",
    summary="The distance within which 95% of the attention that is not on a sink lies, and that of half of it.",
    unit="tokens",
    low=0.0,
    high=131072.0,
    citation="arXiv:1905.07799",
    scope="attention",
    sites=("self",),  # in cross-attention, positions of two sequences have no distance
    parts=("most", "half"),
    bound="span",
    log=True,
)
def span(mass_by_distance: Float[Tensor, "batch head distance"]) -> dict[str, Float[Tensor, "batch head"]]:
    # With m_d the mass at distance d, over all rows and without sink keys: the least w with
    # m_0 + ... + m_w >= 0.95 (m_0 + m_1 + ...), and the same with 0.5. A head with everything on sinks has span 0.
    within = mass_by_distance.double().cumsum(dim=-1)
    broken = within[..., -1].isnan()
    spans = {}
    for part, share in (("most", MOST), ("half", HALF)):
        found = (within < share * within[..., -1:]).sum(dim=-1).double()
        spans[part] = found.masked_fill(broken, torch.nan)
    return spans
