"""Random tokens, twice over: sequences that nothing but induction can go on with.

In the second half every token has stood once before, and what followed it then follows it now; grammar, meaning and
frequency say nothing (arXiv:2209.11895). Tokens are drawn without replacement where there are enough, so that the first
half repeats none.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence

from attnscope.core.errors import RefusalError
from attnscope.trace.windows import Window, Windows, refuse_too_much_chance, window_length


def repeated_windows(
    vocabulary: Sequence[int],
    *,
    max_tokens: int | None = None,
    positions: int | None = None,
    samples: int = 64,
    seed: int = 0,
    first: int | None = None,
) -> Windows:
    """`first` (a BOS token), random tokens, and the same again; of as many tokens as fit into `max_tokens`."""
    limit = window_length(max_tokens, positions)
    opening = () if first is None else (first,)
    half = (limit - len(opening)) // 2
    if half < 2 or len(vocabulary) < 2:
        raise RefusalError(
            f"Random tokens twice over need two tokens and two places for each, and there are {len(vocabulary)} tokens"
            f" and {limit} places: pass --max-tokens {4 + len(opening)} or more."
        )
    refuse_too_much_chance(samples, limit)
    draw = random.Random(seed)
    found = []
    for _ in range(samples):
        once = draw.sample(vocabulary, half) if half <= len(vocabulary) else draw.choices(vocabulary, k=half)
        found.append(Window((*opening, *once, *once)))
    digest = hashlib.sha256(repr([window.ids for window in found]).encode()).hexdigest()
    return Windows(f"random tokens, twice over (seed {seed})", digest, tuple(found), limit)
