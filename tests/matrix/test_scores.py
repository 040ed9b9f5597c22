"""Fused attention with its log-sum-exp equals the model's own attention to the bit; bands give the visible keys."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from attnscope.matrix.attend import attend_with_lse
from attnscope.matrix.dense import dense_logits
from attnscope.matrix.scores import Scores
from attnscope.matrix.tiles import row_lse
from attnscope.matrix.visibility import Band


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("mask", ["none", "causal", "bool", "additive", "key padding", "blind row"])
@pytest.mark.parametrize("kv_heads", [2, 4])
@pytest.mark.parametrize("value_dim", [16, 24])
def test_output_is_equal_to_the_bit(dtype: torch.dtype, mask: str, kv_heads: int, value_dim: int) -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 70, 4, 16, generator=generator).to(dtype).transpose(1, 2)
    key = torch.randn(2, 50, kv_heads, 16, generator=generator).to(dtype).transpose(1, 2)
    value = torch.randn(2, 50, kv_heads, value_dim, generator=generator).to(dtype).transpose(1, 2)
    allowed = torch.rand(2, 1, 70, 50, generator=generator) < 0.7
    if mask == "blind row":
        allowed[1, 0, 3] = False
    masks = {
        "bool": allowed,
        "blind row": allowed,
        "additive": torch.randn(2, 4, 70, 50, generator=generator).to(dtype),
        "key padding": (torch.arange(50) < 31).expand(2, 1, 1, 50),
    }
    arguments: dict[str, Any] = {
        "attn_mask": masks.get(mask),
        "is_causal": mask == "causal",
        "scale": 0.3,
        "enable_gqa": kv_heads != 4,
    }
    out, lse = attend_with_lse(query, key, value, **arguments)
    assert torch.equal(out, F.scaled_dot_product_attention(query, key, value, **arguments))
    if value_dim == 16:
        assert lse is not None
        additive = mask == "additive"
        scores = Scores(
            query,
            key,
            0.3,
            causal=mask == "causal",
            bias=masks["additive"] if additive else None,
            allowed=None if additive else masks.get(mask),
        )
        truth = dense_logits(scores).logsumexp(-1)
        seen = truth > float("-inf")
        error = 1e-5 if dtype in (torch.float32, torch.float64) else 1e-3
        torch.testing.assert_close(lse.double()[seen], truth[seen], rtol=0, atol=error)
        torch.testing.assert_close(row_lse(scores).double()[seen], truth[seen], rtol=0, atol=1e-5)
    else:
        assert lse is None


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_gradients_and_dropout_pass_through(dropout: float) -> None:
    x = [torch.randn(1, 2, 9, 8, requires_grad=True) for _ in range(3)]
    torch.manual_seed(0)
    out, lse = attend_with_lse(*x, dropout_p=dropout, is_causal=True)
    torch.manual_seed(0)
    truth = F.scaled_dot_product_attention(x[0], x[1], x[2], dropout_p=dropout, is_causal=True)
    assert torch.equal(out, truth)
    assert (lse is None) == (dropout > 0)
    assert torch.equal(torch.autograd.grad(out.sum(), x[0])[0], torch.autograd.grad(truth.sum(), x[0])[0])


@given(
    behind=st.none() | st.integers(0, 9),
    ahead=st.none() | st.integers(0, 9),
    first=st.integers(0, 12),
    more=st.integers(0, 6),
    keys=st.integers(1, 15),
)
def test_visible_is_the_hull_of_what_is_permitted(
    behind: int | None, ahead: int | None, first: int, more: int, keys: int
) -> None:
    band = Band(behind, ahead)
    i, j = torch.arange(first, first + more + 1)[:, None], torch.arange(keys)
    permitted = band.permits(i, j)
    assert torch.equal(permitted, band.mirrored.permits(j, i))
    assert band.open == (behind is None and ahead is None)
    seen = permitted.any(0).nonzero().flatten().tolist()
    start, stop = band.visible(first, first + more, keys)
    assert list(range(start, stop)) == seen


def test_bands_of_scores() -> None:
    x = torch.zeros(1, 4, 3, 2)
    assert Scores(x, x, 1.0).band == Band()
    assert Scores(x, x, 1.0, causal=True).band == Band(ahead=0)
    assert Scores(x, x, 1.0, causal=True, window=3).band == Band(behind=2, ahead=0)
    assert Scores(x, x, 1.0, window=3).band == Band(behind=2, ahead=2)
    assert Scores(x, x[:, :2], 1.0).sharing == 2
