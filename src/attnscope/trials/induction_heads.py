"""Induction heads of real models: on random tokens that come twice, who attends to what followed the token before?

Nothing but the first time can tell what comes in the second, and random tokens have no grammar: a head that attends to
the token behind the last occurrence has looked the context up. The heads that make this possible, which tell each token
what stood before it, should lie in earlier layers (arXiv:2209.11895, 2409.10559).
"""

from __future__ import annotations

from typing import Any

from attnscope.corpus.read import REPEATED
from attnscope.scanning.scan import scan

MEASURES = ("induction", "previous_token")


def uniform_share(tokens: int) -> float:
    """What a head that attends to all it sees alike gives to one of them, mean over the second time; behind BOS."""
    return sum(1 / (place + 2) for place in range(tokens, 2 * tokens)) / tokens


def heads_of(model: str, rows: int, tokens: int, seed: int) -> list[dict[str, Any]]:
    """Both measures for every head of a model that is loaded by name, on BOS and twice so many tokens."""
    survey = scan(model, REPEATED, measures=MEASURES, samples=rows, max_tokens=2 * tokens + 1, bos="yes", seed=seed)
    found, before = (survey.values(name) for name in MEASURES)
    return [
        {"layer": layer, "head": head, "induction": float(found[layer, head]), "previous": float(before[layer, head])}
        for layer in range(len(found))
        for head in range(found.shape[1])
    ]
