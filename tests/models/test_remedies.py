"""Remedies against collapse: what each computes, and that none looks where a mask forbids it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.models.nano import Block, Config, Nano
from attnscope.models.nano_parts import Attend
from attnscope.models.remedies import (
    Contrasted,
    attn_scale,
    local,
    minus_uniform,
    shaped,
    with_unit_spectral_norm,
)

TOKENS = 9
SCALE = 0.5
OF_ALL_TOKENS = {"minus_uniform": minus_uniform, "shaped": shaped(), "attn_scale": attn_scale(3.0)}


def heads(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    query, key, value = torch.randn(3, 2, 2, TOKENS, 4, generator=rng, dtype=torch.float64)
    return query, key, value


def pattern(query: Tensor, key: Tensor, seen: Tensor | None = None) -> Tensor:
    logits = SCALE * query @ key.mT
    return (logits if seen is None else logits.masked_fill(~seen, -torch.inf)).softmax(-1)


def causal() -> Tensor:
    return torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()[None, None]


def near(window: int) -> Tensor:
    return torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril(window).triu(-window)


def nano(attention: Attend, *, is_causal: bool = False) -> Nano:
    config = Config(vocab_size=20, width=8, heads=2, layers=2, causal=is_causal, initial=0.6)
    return Nano(config, seed=0, attention=attention).double()


def test_what_they_compute() -> None:
    query, key, value = heads()
    mixed, mean = pattern(query, key) @ value, value.mean(-2, keepdim=True)
    given = (query, key, value, None, SCALE)
    torch.testing.assert_close(minus_uniform(*given), mixed - mean)
    torch.testing.assert_close(shaped(0.5, 2.0, 0.25)(*given), 0.5 * value + 2 * mixed - 0.25 * mean)
    torch.testing.assert_close(attn_scale(3.0)(*given), mean + 4 * (mixed - mean))
    torch.testing.assert_close(local(2)(*given), pattern(query, key, near(2)) @ value)


def test_a_window_joins_the_mask_of_the_model() -> None:
    query, key, value = heads()
    seen = near(2) & causal()
    torch.testing.assert_close(local(2)(query, key, value, causal(), SCALE), pattern(query, key, seen) @ value)
    everything = local(TOKENS)(query, key, value, causal(), SCALE)
    torch.testing.assert_close(everything, pattern(query, key, causal()) @ value)


def test_a_window_in_a_causal_model_does_not_see_the_future() -> None:
    model = nano(local(3), is_causal=True)
    ids = torch.randint(0, 20, (1, TOKENS), generator=torch.Generator().manual_seed(0))
    other = ids.clone()
    other[0, 5:] = (ids[0, 5:] + 1) % 20
    assert torch.equal(model(ids)[:, :5], model(other)[:, :5])
    assert not torch.equal(model(ids)[:, 5:], model(other)[:, 5:])


def test_padding_is_not_seen_through_a_window_and_makes_no_nan() -> None:
    model = nano(local(1))
    ids = torch.randint(0, 20, (1, TOKENS), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(TOKENS) < 4).long()[None]
    padded = model(ids, attention_mask=mask)
    assert bool(padded.isfinite().all())
    torch.testing.assert_close(padded[:, :4], model(ids[:, :4]))


def test_positions_are_made_where_the_queries_are() -> None:
    query, key, value = (tensor.to("meta") for tensor in heads())
    assert local(2)(query, key, value, None, SCALE).device.type == "meta"


@pytest.mark.parametrize("name", OF_ALL_TOKENS)
def test_remedies_that_average_over_all_tokens_refuse_a_mask(name: str) -> None:
    with pytest.raises(RefusalError, match="without padding"):
        OF_ALL_TOKENS[name](*heads(), causal(), SCALE)
    with pytest.raises(RefusalError, match="not causal"):
        nano(OF_ALL_TOKENS[name], is_causal=True)(torch.zeros(1, 4, dtype=torch.long))


def test_contra_norm_pushes_tokens_apart_and_refuses_a_mask() -> None:
    model = nano(local(TOKENS))
    block = model.blocks[0]
    assert isinstance(block, Block)
    attention = block.attention
    stream = torch.randn(1, TOKENS, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    plain, apart = attention(stream), Contrasted(attention, 0.9)(stream)
    unit = torch.nn.functional.normalize(plain, dim=-1)
    torch.testing.assert_close(apart, plain - 0.9 * (unit @ unit.mT).softmax(-1) @ plain)
    with pytest.raises(RefusalError, match="without padding"):
        Contrasted(attention, 0.9)(stream, causal())


def test_unit_spectral_norm_of_every_linear_map() -> None:
    model = nano(minus_uniform)
    with_unit_spectral_norm(model)
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            assert float(torch.linalg.matrix_norm(module.weight.detach(), ord=2)) == pytest.approx(1)
