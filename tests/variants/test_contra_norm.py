"""ContraNorm: tokens that are alike move apart."""

import torch
import torch.nn.functional as F
from torch import Tensor

from attnscope.variants.contra_norm import contra_norm
from tests.variants.calls import noise


def alike(tokens: Tensor) -> float:
    unit = F.normalize(tokens, dim=-1)
    return float((unit @ unit.mT).mean())


def test_by_the_formula() -> None:
    write = noise(0, 2, 9, 6)
    unit = F.normalize(write, dim=-1)
    expected = write - 0.9 * (unit @ unit.mT).softmax(-1) @ write
    torch.testing.assert_close(contra_norm(write, strength=torch.full((1,), 0.9)), expected)


def test_tokens_that_are_alike_come_apart() -> None:
    write = 3 + noise(0, 1, 9, 6)
    assert alike(contra_norm(write, strength=torch.full((1,), 0.9))) < 0.7 * alike(write)


def test_each_token_depends_on_visible_tokens_only() -> None:
    write = noise(0, 1, 9, 6)
    strength = torch.full((1,), 0.9, dtype=torch.float64)
    whole = contra_norm(write, strength=strength, causal=True)
    for token in range(9):
        cut = contra_norm(write[:, : token + 1], strength=strength)
        torch.testing.assert_close(whole[:, token], cut[:, token])
