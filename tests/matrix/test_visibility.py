"""What masks say: which of them are no more than a list of real keys, and what heads share."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnscope.matrix.plain_attention import mean_of_visible, plain_attention, uniform_pattern
from attnscope.matrix.visibility import for_every_head, real_keys

TOKENS = 6
PAST = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
VALUES = torch.randn(2, 2, TOKENS, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
REAL = torch.tensor([False, True, True, True, True, False])


def masks() -> dict[str, tuple[Tensor | None, bool]]:
    """Masks, with and without the flag, by what they say."""
    return {
        "nothing": (None, False),
        "the flag": (None, True),
        "a list": (REAL[None, None, None], False),
        "a list and the flag": (REAL[None, None, None], True),
        "a list for each query": (REAL.expand(TOKENS, TOKENS)[None, None], False),
        "a list for each query and the flag": ((REAL & PAST)[None, None], True),
        "the past written out": (PAST[None, None], False),
        "the past and a list": ((REAL & PAST)[None, None], False),
        "packed texts": (torch.block_diag(*[torch.ones(2, 2)] * 3).bool()[None, None], False),
        "a window": (PAST.triu(-2)[None, None], True),
    }


@pytest.mark.parametrize("name", masks())
def test_a_list_says_the_same_as_its_mask_or_none_is_given(name: str) -> None:
    visible, causal = masks()[name]
    found = real_keys(visible, causal, TOKENS)
    assert (found is None) == (name in ("packed texts", "a window"))
    if found is not None:
        listed = torch.ones(TOKENS, dtype=torch.bool) if found.real is None else found.real[0, 0]
        said = listed & PAST if found.causal else listed.expand(TOKENS, TOKENS)
        meant = torch.ones(TOKENS, TOKENS, dtype=torch.bool) if visible is None else visible[0, 0]
        assert torch.equal(said, (meant & PAST if causal else meant).expand(TOKENS, TOKENS))


@pytest.mark.parametrize("name", masks())
def test_the_mean_of_what_is_seen_is_the_uniform_pattern(name: str) -> None:
    visible, causal = masks()[name]
    query, value = torch.zeros(2, 4, TOKENS, 3, dtype=torch.float64), VALUES
    rows = uniform_pattern(query, value, visible=visible, causal=causal)
    found = mean_of_visible(query, value, visible=visible, causal=causal).expand(2, 4, TOKENS, 3)
    torch.testing.assert_close(found, rows @ for_every_head(value, 4))
    torch.testing.assert_close(plain_attention(query, value, value, visible=visible, causal=causal, scale=1.0), found)


def test_neighbouring_heads_share_keys() -> None:
    shared = torch.arange(2.0)[None, :, None, None]
    assert for_every_head(shared, 6).flatten().tolist() == [0, 0, 0, 1, 1, 1]
