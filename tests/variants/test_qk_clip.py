"""QK-Clip: the largest logit of a head, brought to the threshold and no farther."""

import pytest
import torch
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.variants.qk_clip import qk_clip
from tests.variants.calls import noise

HEADS, DIM, WIDTH = 4, 3, 6
STREAM = noise(0, 9, WIDTH)


def largest(weights: dict[str, Tensor], kv_heads: int) -> Tensor:
    """The largest logit of each head on this stream, biases and all."""
    query, key = (
        (STREAM @ weights[f"{side}_weight"].mT + weights[f"{side}_bias"]).unflatten(-1, (count, DIM)).transpose(0, 1)
        for side, count in (("query", HEADS), ("key", kv_heads))
    )
    return (query @ key.repeat_interleave(HEADS // kv_heads, 0).mT).amax((-2, -1))


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_no_head_is_above_the_threshold_and_those_below_stay_to_the_bit(kv_heads: int) -> None:
    weights = {
        "query_weight": noise(1, HEADS * DIM, WIDTH),
        "query_bias": noise(2, HEADS * DIM),
        "key_weight": noise(3, kv_heads * DIM, WIDTH),
        "key_bias": noise(4, kv_heads * DIM),
        "value_weight": noise(5, kv_heads * DIM, WIDTH),
    }
    before = largest(weights, kv_heads)
    threshold = float(before.median()) + 1e-3
    clipped = qk_clip(weights, max_logit=before, threshold=threshold)
    after = largest(clipped, kv_heads)
    torch.testing.assert_close(after, before.clamp_max(threshold))
    below = before <= threshold
    assert 0 < int(below.sum()) < HEADS
    for name in ("query_weight", "query_bias"):
        old, new = (one[name].unflatten(0, (HEADS, DIM))[below] for one in (weights, clipped))
        assert torch.equal(old, new)
    assert clipped["value_weight"] is weights["value_weight"]
    assert torch.equal(clipped["key_weight"], weights["key_weight"]) == (kv_heads < HEADS)


def test_bad_input_of_clipping_is_refused() -> None:
    weights = {"query_weight": noise(1, 7, WIDTH)}
    with pytest.raises(RefusalError, match="4 heads"):
        qk_clip(weights, max_logit=torch.ones(4))
    with pytest.raises(RefusalError, match="above 0"):
        qk_clip({"query_weight": noise(1, 8, WIDTH)}, max_logit=torch.ones(4), threshold=0.0)
