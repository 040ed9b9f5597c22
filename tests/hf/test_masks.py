"""A mask is replaced by a rule only if the rule reproduces every entry."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnscope.hf.intercepting.masks import MaskReader, Rule, read_mask


def spelled_out(rule: Rule, queries: int, keys: int) -> Tensor:
    distance = torch.arange(queries)[:, None] - torch.arange(keys)
    allowed = torch.ones(1, 1, queries, keys, dtype=torch.bool)
    if rule.causal:
        allowed = allowed & (distance >= 0)
    if rule.window is not None:
        allowed = allowed & (distance.abs() < rule.window)
    if rule.allowed is not None:
        allowed = allowed & rule.allowed
    if rule.bias is not None:
        allowed = allowed & ~rule.bias.isneginf()
    return allowed


@given(
    st.integers(1, 9),
    st.booleans(),
    st.one_of(st.none(), st.integers(1, 9)),
    st.integers(0, 4),
    st.sampled_from(["none", "left", "right"]),
    st.sampled_from([torch.bool, torch.float32, torch.bfloat16]),
)
def test_every_rule_is_read_back(
    tokens: int, causal: bool, window: int | None, short: int, side: str, dtype: torch.dtype
) -> None:
    distance = torch.arange(tokens)[:, None] - torch.arange(tokens)
    allowed = (distance >= 0) if causal else torch.ones(tokens, tokens, dtype=torch.bool)
    if window is not None:
        allowed = allowed & (distance.abs() < window)
    allowed = allowed.repeat(2, 1, 1, 1)
    short = min(short, tokens - 1)
    if side == "left" and short:
        allowed[0, :, :, :short] = False
    if side == "right" and short:
        allowed[0, :, :, -short:] = False
    mask = allowed if dtype == torch.bool else torch.zeros(allowed.shape, dtype=dtype)
    if dtype != torch.bool:
        mask = mask.masked_fill(~allowed, torch.finfo(dtype).min)
    rule = read_mask(mask, tokens)
    assert torch.equal(spelled_out(rule, tokens, tokens).expand(2, 1, -1, -1), allowed)
    assert rule.bias is None
    # If every key is visible to some query, the rule needs at most one row of keys.
    if window is None or not short:
        assert rule.allowed is None or rule.allowed.shape[2] == 1


@given(st.integers(0, 2**16 - 1))
def test_an_arbitrary_mask_is_never_changed(bits: int) -> None:
    allowed = torch.tensor([(bits >> i) & 1 for i in range(16)], dtype=torch.bool).view(1, 1, 4, 4)
    assert torch.equal(spelled_out(read_mask(allowed, 4), 4, 4), allowed)


def test_a_padded_causal_mask_keeps_one_row_of_keys() -> None:
    allowed = torch.ones(6, 6, dtype=torch.bool).tril().repeat(2, 1, 1, 1)
    allowed[0, :, :, :2] = False
    rule = read_mask(allowed, 6)
    assert rule.causal
    assert rule.window is None
    assert rule.allowed is not None
    assert rule.allowed.shape == (2, 1, 1, 6)


def test_sliding_windows_are_recognised() -> None:
    distance = torch.arange(8)[:, None] - torch.arange(8)
    back = read_mask(((distance >= 0) & (distance < 3))[None, None], 8)
    both = read_mask((distance.abs() < 3)[None, None], 8)
    assert (back.causal, back.window, back.allowed) == (True, 3, None)
    assert (both.causal, both.window, both.allowed) == (False, 3, None)


def test_a_bias_stays_a_bias_and_forbidden_entries_become_infinite() -> None:
    bias = torch.randn(1, 2, 3, 3, generator=torch.Generator().manual_seed(0))
    assert read_mask(bias, 3).bias is not None
    assert torch.equal(read_mask(bias, 3).bias, bias)  # type: ignore[arg-type]
    bias[0, 0, 0, 2] = torch.finfo(torch.float32).min
    read = read_mask(bias, 3).bias
    assert read is not None
    assert torch.isneginf(read[0, 0, 0, 2])
    assert int(torch.isneginf(read).sum()) == 1


def test_bias_of_zeros_is_ignored() -> None:
    rule = read_mask(torch.zeros(1, 4, 5, 7), 5)
    assert rule == Rule()


def test_expanded_axes_are_read_once() -> None:
    row = torch.tensor([True, True, False])
    rule = read_mask(row.expand(2, 4, 3, 3), 3)
    assert rule.allowed is not None
    assert rule.allowed.shape == (1, 1, 1, 3)


def test_a_rectangle_of_cached_keys_is_passed_on() -> None:
    allowed = torch.ones(2, 5, dtype=torch.bool).tril(3)[None, None]
    rule = read_mask(allowed, 2)
    assert not rule.causal
    assert rule.allowed is not None
    assert torch.equal(rule.allowed, allowed)


def test_mask_is_read_once_for_all_blocks() -> None:
    reader = MaskReader()
    mask = torch.ones(1, 1, 4, 4, dtype=torch.bool).tril()
    assert reader.read(mask, 4) is reader.read(mask, 4)
    assert reader.read(None, 4) == Rule()
    reader.forget()
    assert reader.read(mask, 4) == Rule(causal=True)


@pytest.mark.parametrize("rows", [1, 1500])
def test_long_masks_are_compared_in_pieces(rows: int) -> None:
    mask = torch.ones(1, 1, rows, rows, dtype=torch.bool).tril()
    rule = read_mask(mask, rows)
    assert rule.allowed is None
    assert rule.causal == (rows > 1)
