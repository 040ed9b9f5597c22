"""Occlusion: put a vector that says nothing in a token's place, and see how much of the answer goes (arXiv:1311.2901).

Slow and obvious: one run of the model for every token, and no derivative anywhere. It sees one token at a time, so of
two that each suffice it blames neither.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.explanation import explanation

AT_ONCE = 16  # runs of the model in one batch


@explanation(
    title="Occlusion",
    summary="What the answer loses when a token is replaced by one that says nothing, one token at a time.",
    citation="arXiv:1311.2901",
    formula="answer - answer without the token",
    cost="one forward pass for every token",
    signed=True,
    group="slow",
)
def occlusion(
    embedding: dict[str, Float[Tensor, "token width"]],
    baseline: dict[str, Float[Tensor, "token width"]],
    ask: Callable[..., Float[Tensor, " batch"]],
) -> dict[str, Float[Tensor, " token"]]:
    found = {}
    with torch.no_grad():
        whole = ask({stack: vectors[None] for stack, vectors in embedding.items()})
        for stack, vectors in embedding.items():
            lost = []
            for begin in range(0, len(vectors), AT_ONCE):
                places = torch.arange(begin, min(begin + AT_ONCE, len(vectors)), device=vectors.device)
                given = {name: own.expand(len(places), *own.shape).clone() for name, own in embedding.items()}
                given[stack][torch.arange(len(places), device=vectors.device), places] = baseline[stack][places]
                lost.append(whole - ask(given))
            found[stack] = torch.cat(lost)
    return found
