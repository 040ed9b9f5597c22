"""Occlusion against one token at a time, in a plain loop."""

import pytest
import torch
from torch import Tensor

from attnscope.explanations import occlusion as module
from attnscope.explanations.occlusion import occlusion


@pytest.mark.parametrize("at_once", [1, 2, 16])
def test_each_token_is_replaced_alone(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(module, "AT_ONCE", at_once)
    rng = torch.Generator().manual_seed(0)
    vectors = {"encoder": torch.randn(5, 3, generator=rng), "decoder": torch.randn(2, 3, generator=rng)}
    nothing = {"encoder": torch.randn(5, 3, generator=rng), "decoder": torch.zeros(2, 3)}

    def ask(given: dict[str, Tensor]) -> Tensor:
        return (given["encoder"].sum(-1).cumsum(-1).tanh() * 2).sum(-1) + given["decoder"].prod(-1).sum(-1)

    found = occlusion(embedding=vectors, baseline=nothing, ask=ask)
    whole = ask({stack: one[None] for stack, one in vectors.items()})
    for stack, own in vectors.items():
        for place in range(len(own)):
            other = {name: one[None].clone() for name, one in vectors.items()}
            other[stack][0, place] = nothing[stack][place]
            assert float(found[stack][place]) == pytest.approx(float(whole - ask(other)), abs=1e-5)
