"""Whether a head attends to the token after an earlier occurrence of the query's token, as induction heads do."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from attnscope.core.measure import Located, measure
from attnscope.matrix.logits import with_lse
from attnscope.matrix.scores import Scores, mass_at
from attnscope.matrix.visibility import accumulation_dtype


@measure(
    title="Induction",
    summary="The mean attention of a repeated token to the token that followed its earlier occurrence.",
    unit="share",
    low=0.0,
    high=1.0,
    citation="arXiv:2209.11895",
    scope="attention",
    group="deep",
    sites=("self",),
)
def induction(
    scores: Scores,
    tokens: Int[Tensor, "batch key"],
    query_mask: Bool[Tensor, "batch query"],
    key_mask: Bool[Tensor, "batch key"],
) -> Located:
    # Mean over rows i of A_{i, p+1}, where p is the last place before i with the same token. This needs one dot product
    # per row, because the mass on a key is exp(s_ij - lse_i). Rows without such a place are ignored, and so are rows
    # with p = i - 1, whose next token is row i itself; a sequence of only such rows has no value. In repeated random
    # tokens every row of the second half counts, and grammar does not help to find the place. With texts of one length,
    # a head that always looks back by half a text cannot be distinguished from one that compares tokens.
    dtype = accumulation_dtype(scores.query)
    target = _after_last_occurrence(tokens, query_mask & key_mask)
    counted = target >= 0
    known = with_lse(scores, dtype)
    mass = mass_at(known, target, dtype, known.lse if known.lse is None else known.lse.to(dtype))
    total = mass.masked_fill(~counted[:, None], 0.0).sum(dim=-1).clamp_max(counted.sum(dim=-1)[:, None])
    return Located(total / counted.sum(dim=-1).clamp_min(1)[:, None], counted=counted.any(dim=-1))


def _after_last_occurrence(
    tokens: Int[Tensor, "batch token"], real: Bool[Tensor, "batch token"]
) -> Int[Tensor, "batch token"]:
    """Return for every token the place after its last earlier occurrence, or -1. O(n log n): a stable sort groups equal
    tokens in order."""
    place = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    alike, order = torch.where(real, tokens, -1 - place).sort(dim=-1, stable=True)  # padding equals no token
    again = alike[:, 1:] == alike[:, :-1]
    before = torch.full_like(place, -2).scatter(-1, order[:, 1:], torch.where(again, order[:, :-1], -2))
    return torch.where((before >= 0) & (before + 1 < place), before + 1, -1)
