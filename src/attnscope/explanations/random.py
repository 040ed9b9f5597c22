"""Random numbers: the floor that every other explanation must beat."""

import torch

from attnscope.core.explanation import explanation
from attnscope.matrix.relevance import TokenScores, TokenVectors


@explanation(
    title="Random",
    summary="A random number for each token, as a floor for the other methods.",
    citation="arXiv:1911.03429",
    formula="uniform in 0 to 1",
    cost="nothing",
    signed=False,
    group="floor",
    reads_answer=False,
)
def random(embedding: TokenVectors, seed: int) -> TokenScores:
    generator = torch.Generator().manual_seed(seed)
    return {stack: torch.rand(len(vectors), generator=generator).to(vectors) for stack, vectors in embedding.items()}
