"""Tokens that are kept in part, in proportion to their importance, and as much in all for every method.

Hard holes treat the first and the last of the tokens that are taken away alike, and make texts that no model has seen.
Soft erasure (arXiv:2305.10496) drops single entries of a token's vector instead, each kept with a probability that
grows with the token's number. Methods whose numbers are large on average then keep more, and look better for it, above
all in decoders; so the expected share that is kept is made equal for all (arXiv:2601.03089). That alone is not fair:
how well a method does still depends on the *shape* of its numbers, a few large ones or all alike, also where they are
drawn at random. So numbers are replaced by their places: with a = 0 for the least important token, 1 for the most, and
equal steps between them, whose mean is 1/2,

    p = 2 s a                    for a share s of 1/2 or less
    p = 1 - 2 (1 - s) (1 - a)    for more

The mean of p is s, and p at share s is 1 - p of the reversed order at share 1 - s. SHARES are as far below 1/2 as above
it, so that for an order that is drawn at random `kept` and `dropped` are spread alike, and what is lost without less
what is lost with them alone (the soft gap) is 0 on average, whatever the answer is. Equal numbers stand in an order
that is drawn by the seed, the same for all methods: one token above many equal ones, reversed, is another shape, which
would not be 0.

`kept` keeps entries with probability p (what the explanation says suffices), `dropped` with 1 - p. Chances are drawn
once for a text and used for every method: what is luck is the same for all.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

SHARES = (0.25, 0.5, 0.75)
DRAWS = 2
AWAY = 6_364_136_223  # from the seeds of random explanations, which are near or a few millions away


def places(scores: Float[Tensor, " token"], generator: torch.Generator) -> Int[Tensor, " token"]:
    """0 for the smallest number, and so on; equal ones in an order that is drawn."""
    given = scores.double().cpu()
    shuffled = torch.randperm(len(given), generator=generator)
    order = shuffled[given[shuffled].argsort(stable=True)]
    return torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))


def retention(place: Int[Tensor, " token"], share: float) -> Float[Tensor, " token"]:
    """p_i for every token, float64: between 0 and 1, growing with its place, `share` on average."""
    count = len(place)
    if count < 2:
        return torch.full((count,), share, dtype=torch.float64)
    a = place.double() / (count - 1)
    return 2 * share * a if share <= 1 / 2 else 1 - 2 * (1 - share) * (1 - a)


def soft_masks(
    scores: Float[Tensor, " token"], width: int, seed: int
) -> tuple[Bool[Tensor, "draw token width"], Bool[Tensor, "draw token width"]]:
    """Which entries stay where p says so, and where 1 - p does, for every share and draw."""
    # Not the numbers that the random explanation of the same text draws.
    generator = torch.Generator().manual_seed(seed + AWAY)
    place = places(scores, generator)
    kept, dropped = [], []
    for share in SHARES:
        p = retention(place, share)[:, None]
        for _ in range(DRAWS):
            chance = torch.rand(len(scores), width, generator=generator, dtype=torch.float64)
            kept.append(chance < p)
            dropped.append(chance < 1 - p)
    return torch.stack(kept), torch.stack(dropped)
