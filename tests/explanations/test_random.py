"""Random scores depend on the seed only."""

import torch

from attnscope.explanations.random import random


def test_the_seed_alone_decides() -> None:
    one, other = ({"model": torch.randn(7, 3)} for _ in range(2))
    same = random(embedding=one, seed=3)["model"]
    assert torch.equal(same, random(embedding=other, seed=3)["model"])
    assert not torch.equal(same, random(embedding=one, seed=4)["model"])
    assert bool(((same >= 0) & (same < 1)).all())
