"""Random numbers: the floor that every other explanation must beat."""

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.explanation import explanation


@explanation(
    title="Random",
    summary="A random number for each token: what every other method must beat.",
    citation="arXiv:1911.03429",
    formula="uniform in 0 to 1",
    cost="nothing",
    signed=False,
    group="floor",
)
def random(embedding: dict[str, Float[Tensor, "token width"]], seed: int) -> dict[str, Float[Tensor, " token"]]:
    generator = torch.Generator().manual_seed(seed)
    return {stack: torch.rand(len(vectors), generator=generator).to(vectors) for stack, vectors in embedding.items()}
