"""Seeds: whole numbers that every generator takes, Python's, numpy's and torch's alike."""

from __future__ import annotations

from attnscope.core.errors import RefusalError

LARGEST_SEED = 2**64 - 1
LOWEST_OF_TORCH = -(2**63)


def refuse_unusable_seed(seed: int, lowest: int = LOWEST_OF_TORCH) -> None:
    """`lowest` is 0 where numpy draws: it takes no negative seeds."""
    if seed < lowest:
        raise RefusalError(f"A seed of {seed} cannot be used: choose 0 or more.")
    if seed > LARGEST_SEED:
        raise RefusalError(f"A seed of {seed} has more than 64 bits: choose one up to {LARGEST_SEED}.")
