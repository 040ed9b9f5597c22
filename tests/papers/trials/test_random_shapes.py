"""ALBERT as the authors of arXiv:2103.03404 cut it: the MLP's matrices are gone, its activation is not.

At the published size this is a matter of minutes (`attnscope reproduce dong2021 --preset paper`); here a smaller shape
shows the same thing, with weights large enough for twelve narrow layers to collapse at all.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from attnscope.commands.collapse.record import Curve
from attnscope.commands.collapse.run import collapse
from attnscope.hf.loading.in_memory import shaped
from attnscope.hf.loading.load import Loaded
from attnscope.papers.trials.random_shapes import activation_kept

SMALL: dict[str, Any] = {
    "vocab_size": 200,
    "embedding_size": 32,
    "hidden_size": 96,
    "num_attention_heads": 4,
    "intermediate_size": 192,
    "num_hidden_layers": 12,
    "initializer_range": 0.06,
}


def kept(seed: int) -> Loaded:
    return activation_kept(seed, **SMALL)


def whole(seed: int) -> Loaded:
    return shaped("albert-base", seed=seed, **SMALL)


def test_only_the_two_matrices_of_the_mlp_are_taken_out() -> None:
    ours, theirs = whole(0).model, kept(0).model
    changed = {path for path, module in theirs.named_modules() if type(module) is not type(ours.get_submodule(path))}
    assert {path.rpartition(".")[2] for path in changed} == {"ffn", "ffn_output"}
    assert all(isinstance(theirs.get_submodule(path), nn.Identity) for path in changed)
    left = theirs.state_dict()
    assert left
    assert all(torch.equal(tensor, ours.state_dict()[name]) for name, tensor in left.items())


@pytest.mark.parametrize("seed", [0, 1])
def test_the_activation_alone_holds_attention_and_skip_up(seed: int) -> None:
    sizes: dict[str, Any] = {"samples": 2, "max_tokens": 16, "bounds": False, "seeds": (seed,)}
    cut: dict[str, Curve] = collapse(whole, variants="san,san+skip", **sizes).curves
    theirs: dict[str, Curve] = collapse(kept, variants="san+mlp,whole", **sizes).curves
    assert theirs["whole"].mean[0] == cut["san+skip"].mean[0]  # the same tokens in the same embedding
    assert theirs["whole"].mean[-1] > 0.3
    assert theirs["whole"].mean[-1] > 2 * cut["san+skip"].mean[-1]
    # Without skips an activation between norms saves nothing.
    assert max(theirs["san+mlp"].mean[-1], cut["san"].mean[-1]) < 1e-12
