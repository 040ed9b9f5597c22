"""AttnScale: the mean stays, and what differs from it is scaled."""

import torch

from attnscope.variants.attn_scale import attn_scale
from tests.variants.calls import heads, inputs, softmax


def test_difference_from_the_mean_is_scaled() -> None:
    query, key, value = heads()
    mixed, mean = softmax(query, key) @ value, value.mean(-2, keepdim=True)
    found = attn_scale(inputs(query, key, value), weight=torch.tensor([3.0, -1.0]))
    torch.testing.assert_close(found[:, 0], (mean + 4 * (mixed - mean))[:, 0])
    torch.testing.assert_close(found[:, 1], mean[:, 1].expand_as(found[:, 1]))


def test_weight_minus_one_gives_the_causal_mean() -> None:
    query, key, value = heads()
    found = attn_scale(inputs(query, key, value, causal=True), weight=torch.full((2,), -1.0))
    counted = torch.arange(1, 10, dtype=torch.float64)[:, None]
    torch.testing.assert_close(found, value.cumsum(-2) / counted)
