"""Tokens that are kept in part, in proportion to their importance, and as much in all for every method.

Hard holes treat the first and the last of the tokens that are taken away alike, and make texts that no model has seen.
Soft erasure (arXiv:2305.10496) drops single entries of a token's vector instead, each kept with a probability that
grows with the token's number. Methods whose numbers are large on average then keep more, and look better for it, above
all in decoders; so the expected share that is kept is made equal for all (arXiv:2601.03089):

    p_i = min(1, c a_i),   c such that mean over tokens of p = share

with a the numbers of a method moved and divided to lie between 0 and 1. Where tokens of number 0 would have to be kept
too to reach the share, they get what is missing in equal parts. Of a method that tells nothing apart all p are equal.

`kept` keeps entries with probability p (what the explanation says suffices), `dropped` with 1 - p. Chances are drawn
once for a text and used for every method: what is luck is the same for all.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

SHARES = (0.25, 0.5, 0.75)
DRAWS = 2


def retention(scores: Float[Tensor, " token"], share: float) -> Float[Tensor, " token"]:
    """p_i for every token, float64: between 0 and 1, growing with the number, `share` on average."""
    given = scores.double().cpu()
    low, high = given.min(), given.max()
    count, wanted = len(given), share * len(given)
    if not bool(high > low):
        return torch.full_like(given, share)
    a = (given - low) / (high - low)
    positive = a > 0
    some = int(positive.sum())
    if some <= wanted:  # all that has a number is kept whole, and the rest shares what is left
        return torch.full_like(given, (wanted - some) / (count - some)).masked_fill(positive, 1.0)
    # With the k largest kept whole, the rest has c = (wanted - k) / (sum of the rest): the smallest k for which no
    # other p exceeds 1 is the one.
    ordered = a.sort(descending=True).values
    below = ordered.flip(0).cumsum(0).flip(0)  # sums from the k-th on
    whole = torch.arange(count, dtype=torch.float64)
    c = torch.where(below > 0, (wanted - whole) / below.clamp_min(torch.finfo(torch.float64).tiny), 0.0)
    fits = (c * ordered <= 1 + 1e-12) & (whole <= wanted)
    k = int(fits.nonzero()[0])
    return (c[k] * a).clamp(0.0, 1.0)


def soft_masks(
    scores: Float[Tensor, " token"], width: int, seed: int
) -> tuple[Bool[Tensor, "draw token width"], Bool[Tensor, "draw token width"]]:
    """Which entries stay where p says so, and where 1 - p does, for every share and draw."""
    # Not the numbers that the random explanation of the same text draws.
    generator = torch.Generator().manual_seed((seed + 1) * 1_000_003)
    kept, dropped = [], []
    for share in SHARES:
        p = retention(scores, share)[:, None]
        for _ in range(DRAWS):
            chance = torch.rand(len(scores), width, generator=generator, dtype=torch.float64)
            kept.append(chance < p)
            dropped.append(chance < 1 - p)
    return torch.stack(kept), torch.stack(dropped)
