"""Occlusion: replace a token by a vector without information, and see how much of the answer is lost (arXiv:1311.2901).

It is slow and simple: one run of the model for every token, and no derivative. It removes one token at a time, so if
either of two tokens would suffice, it credits neither.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.explanation import explanation
from attnscope.matrix.relevance import TokenScores, TokenVectors

AT_ONCE = 16  # number of runs of the model in one batch


@explanation(
    title="Occlusion",
    summary="The loss of the answer when a token is replaced by a neutral one, one token at a time.",
    citation="arXiv:1311.2901",
    formula="answer - answer without the token",
    cost="one forward pass for every token",
    signed=True,
    replaces=True,
    group="slow",
)
def occlusion(
    embedding: TokenVectors, baseline: TokenVectors, ask: Callable[..., Float[Tensor, " batch"]]
) -> TokenScores:
    found = {}
    with torch.no_grad():
        whole = ask({stack: vectors[None] for stack, vectors in embedding.items()})
        for stack, vectors in embedding.items():
            lost = []
            for begin in range(0, len(vectors), AT_ONCE):
                places = torch.arange(begin, min(begin + AT_ONCE, len(vectors)), device=vectors.device)
                occluded = {name: own.expand(len(places), *own.shape).clone() for name, own in embedding.items()}
                occluded[stack][torch.arange(len(places), device=vectors.device), places] = baseline[stack][places]
                lost.append(whole - ask(occluded))
            found[stack] = torch.cat(lost)
    return found
