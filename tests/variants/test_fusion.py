"""Fusion of block outputs (arXiv:2202.08625), and what it does for tokens that have become alike."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.core.variant import Size
from attnscope.matrix.residual import residual_frobenius
from attnscope.papers.models.nano import Config, Nano
from attnscope.papers.models.nano_paths import network_of
from attnscope.variants.fusion import KINDS, fusion
from tests.variants.calls import noise

SIZE = Size(heads=2, dim=4, width=8, layers=5)


def similarity(tokens: Tensor) -> float:
    """Return the mean cosine between different tokens."""
    unit = F.normalize(tokens, dim=-1)
    count = tokens.shape[-2]
    return float(((unit @ unit.mT).sum((-2, -1)) - count).mean() / (count * (count - 1)))


def streams_of_a_collapsing_stack() -> Tensor:
    """Return streams of attention without skips: tokens become more alike with every block."""
    config = Config(inputs=8, out=1, width=8, heads=2, layers=5, norm="post", positions="none", skip=0, biases=False)
    model = Nano(config, seed=0).double()
    model.embedding = torch.nn.Identity()
    return torch.stack(network_of(model, {"vectors": noise(0, 2, 16, 8)}).streams[1:])


@pytest.mark.parametrize("how", KINDS)
def test_fused_tokens_are_less_alike_than_those_of_the_last_block(how: str) -> None:
    streams = streams_of_a_collapsing_stack()
    own = {name: one.double() for name, one in fusion.start(SIZE, how=how).items()}
    if how == "concat":
        own["mixing"] = torch.eye(8, dtype=torch.float64).repeat(5, 1, 1) / 5
    assert similarity(fusion(streams, how=how, **own)) < similarity(streams[-1]) - 0.01


def test_tokens_that_are_the_same_stay_the_same() -> None:
    """Identical rows have a residual of 0 and a similarity of 1."""
    same = noise(0, 5, 2, 1, 8).expand(-1, -1, 7, -1)
    for how in KINDS:
        own = {name: one.double() for name, one in fusion.start(SIZE, how=how).items()}
        fused = fusion(same, how=how, **own)
        assert float(residual_frobenius(fused).max()) < 1e-12
        assert similarity(fused) == pytest.approx(1)


def test_each_way_by_hand() -> None:
    streams = noise(0, 3, 1, 2, 2)
    torch.testing.assert_close(fusion(streams, how="max"), torch.maximum(torch.maximum(*streams[:2]), streams[2]))
    mixing = noise(1, 3, 2, 2)
    wide = torch.cat(tuple(streams), -1) @ torch.cat(tuple(mixing), 0)
    torch.testing.assert_close(fusion(streams, mixing=mixing), wide)
    one_wins = {"gate_weight": torch.zeros(3, 2), "gate_bias": torch.tensor([0.0, 90.0, 0.0])}
    torch.testing.assert_close(fusion(streams, how="gate", **one_wins), streams[1])


def test_missing_or_unknown_options_are_refused() -> None:
    streams = noise(0, 3, 1, 2, 2)
    with pytest.raises(RefusalError, match="Did you mean 'concat'"):
        fusion(streams, how="conat")
    with pytest.raises(RefusalError, match="needs mixing"):
        fusion(streams)
    with pytest.raises(RefusalError, match="gate_weight and gate_bias"):
        fusion(streams, how="gate")
