"""Seeds of patterns and of searches: whole numbers from 0 on, as numpy's generators want them."""

from __future__ import annotations

from attnscope.core.seeds import refuse_unusable_seed


def refuse_negative(seed: int) -> None:
    """Negative ones, and those that torch's generators could not take after numpy's."""
    refuse_unusable_seed(seed, lowest=0)
