"""Seeds of patterns and of searches: whole numbers from 0 on, as numpy's generators want them."""

from __future__ import annotations

from attnscope.core.errors import RefusalError


def refuse_negative(seed: int) -> None:
    if seed < 0:
        raise RefusalError(f"A seed of {seed} cannot be used: choose 0 or more.")
