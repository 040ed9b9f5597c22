"""What the heads of a model need: patterns as the model makes them, widths that are certified, words that follow."""

from __future__ import annotations

import pytest
import torch

import attnscope
from attnscope.compiling.head_widths import strongest
from attnscope.core.errors import RefusalError
from attnscope.records.head_widths import HeadWidth, HeadWidths


def test_the_strongest_keys_are_kept_and_what_they_hold_is_said() -> None:
    attention = torch.tensor([[1.0, 0.0, 0.0], [0.4, 0.6, 0.0], [0.5, 0.2, 0.3]])
    pattern, held = strongest(attention, 2, causal=True)
    assert pattern.causal
    assert pattern.dense() == pytest.approx(torch.tensor([[1, 0, 0], [0.4, 0.6, 0], [0.625, 0, 0.375]]).numpy())
    assert held == pytest.approx((1 + 1 + 0.8) / 3)


def test_every_head_has_a_certified_width_and_none_is_below_what_is_proved() -> None:
    found = attnscope.head_widths("pocket", k=1, texts=1, max_tokens=8)
    assert len({(one.layer, one.head) for one in found.heads}) == len(found.heads) == len(found.measured)
    assert all(1 <= one.proved <= (one.needs or 0) <= 2 for one in found.heads)  # one key a row: a circle is enough
    assert all(0 < one.held <= 1 for one in found.heads)
    assert len(found.idle) == len(found.heads)
    assert not found.cramped


def test_time_that_is_up_leaves_heads_without_a_width() -> None:
    found = attnscope.head_widths("pocket", k=2, texts=1, max_tokens=8, budget=0)
    assert not found.measured
    assert "No head" in found.sentences()[0]


def test_cramped_and_idle_follow_from_the_widest_text() -> None:
    def head(number: int, *widths: int | None) -> HeadWidth:
        return HeadWidth("model", 0, number, 32, widths, (1,) * len(widths), 0.5)

    heads = (head(0, 2, 4), head(1, 3, 32), head(2, 40, 3), head(3, 2, None), head(4, 5, 5))
    found = HeadWidths("m", 4, 2, (48, 48), "float32", 0.1, 0.01, heads, 1.0)
    assert [one.head for one in found.idle] == [0]
    assert [one.head for one in found.cramped] == [1, 2]
    assert [one.head for one in found.measured] == [0, 1, 2, 4]


def test_what_cannot_be_asked_is_refused() -> None:
    with pytest.raises(RefusalError, match="k of 1 or more"):
        attnscope.head_widths("pocket", k=0)
