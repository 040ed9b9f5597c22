"""One module, drawn first: its inputs give the queries and keys asked for, and what cannot be served is not."""

from __future__ import annotations

import numpy as np
import torch

from attnscope.constructions.random_projection import random_projection
from attnscope.heads.accuracy import Accuracy
from attnscope.heads.generate import generate
from attnscope.heads.rounding import certified
from attnscope.papers.experiments.likhosherstov2021 import FixedModule, fixed_module, serves


def test_a_module_serves_patterns_it_has_not_seen_and_a_singular_one_does_not() -> None:
    accuracy, module = Accuracy(), fixed_module(48, np.random.default_rng(0))
    singular = FixedModule(module.query, module.query, module.inverse)  # W_K = W_Q: logits are symmetric
    for seed in range(3):
        pattern = generate("union_of_permutations", 32, 2, seed=seed)
        head, found = certified(
            random_projection(pattern, 48, accuracy, np.random.default_rng(seed)), pattern, accuracy, "draw"
        )
        assert found.reached
        assert serves(module, head, pattern, accuracy)
        assert not serves(singular, head, pattern, accuracy)


def test_the_input_gives_back_queries_and_keys() -> None:
    module = fixed_module(5, np.random.default_rng(1))
    both = torch.randn(7, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    stream = both @ module.inverse
    weights = torch.cat([module.query, module.key], dim=1).double()
    torch.testing.assert_close(stream @ weights, both)
