"""A local window: which tokens are seen, and a model with it."""

import pytest
import torch
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.papers.models.nano import Config, Nano, exchanged
from attnscope.variants.local import local, pattern
from tests.variants.calls import heads, inputs, softmax

TOKENS = 40


def near(window: int, tokens: int = TOKENS) -> Tensor:
    return torch.ones(tokens, tokens, dtype=torch.bool).tril(window).triu(-window)


def past() -> Tensor:
    return torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()[None, None]


def nano(window: int, *, causal: bool = False) -> Nano:
    config = Config(vocab_size=20, width=8, heads=2, layers=2, causal=causal, initial=0.6)
    return Nano(config, seed=0, attention=exchanged(local, window=window)).double()


@pytest.mark.parametrize("window", [0, 1, 2, 17, 39])
def test_blocks_are_the_window(window: int) -> None:
    query, key, value = heads(TOKENS)
    torch.testing.assert_close(
        local(inputs(query, key, value), window=window), softmax(query, key, seen=near(window)) @ value
    )
    seen = near(window) & past()
    torch.testing.assert_close(
        local(inputs(query, key, value, causal=True), window=window), softmax(query, key, seen=seen) @ value
    )


def test_a_window_as_long_as_the_sequence_is_full_attention() -> None:
    query, key, value = heads(TOKENS)
    torch.testing.assert_close(local(inputs(query, key, value), window=TOKENS), softmax(query, key) @ value)
    everything = local(inputs(query, key, value, causal=True), window=TOKENS)
    torch.testing.assert_close(everything, softmax(query, key, seen=past()) @ value)


def test_nothing_lies_outside_the_window() -> None:
    query, key, _ = heads(TOKENS)
    rows = pattern(inputs(query, key), window=3)
    assert not rows.masked_fill(near(3), 0.0).any()
    assert bool((rows.masked_fill(~near(3), 1.0) > 0).all())


def test_a_window_in_a_causal_model_does_not_see_the_future() -> None:
    model = nano(3, causal=True)
    ids = torch.randint(0, 20, (1, 9), generator=torch.Generator().manual_seed(0))
    other = ids.clone()
    other[0, 5:] = (ids[0, 5:] + 1) % 20
    assert torch.equal(model(ids)[:, :5], model(other)[:, :5])
    assert not torch.equal(model(ids)[:, 5:], model(other)[:, 5:])


def test_padding_is_not_seen_through_a_window_and_makes_no_nan() -> None:
    model = nano(1)
    ids = torch.randint(0, 20, (1, 9), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(9) < 4).long()[None]
    padded = model(ids, attention_mask=mask)
    assert bool(padded.isfinite().all())
    torch.testing.assert_close(padded[:, :4], model(ids[:, :4]))


def test_positions_are_on_the_device_of_the_queries() -> None:
    query, key, value = (tensor.to("meta") for tensor in heads())
    assert local(inputs(query, key, value), window=2).device.type == "meta"


def test_negative_window_is_refused() -> None:
    with pytest.raises(RefusalError, match="cannot be -1"):
        local(inputs(*heads()), window=-1)
