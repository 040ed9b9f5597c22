import pytest
import torch

from attnscope.measures.inactive_heads import inactive_heads


def fields(mixed: torch.Tensor, mask: torch.Tensor | None = None):
    return {"mixed": mixed, "query_mask": torch.ones(mixed.shape[:2], dtype=torch.bool) if mask is None else mask}


def test_by_hand(ask):
    mixed = torch.zeros(1, 4, 3, 2, dtype=torch.float64)
    mixed[:, :, 0] = torch.tensor([3.0, 4.0])  # a norm of 5 at every token
    mixed[:, ::2, 1, 0] = 2.0  # a norm of 2 at every second token: 1 on the mean
    found = ask(inactive_heads, fields(mixed))
    assert found[0].tolist() == pytest.approx([2.5, 0.5, 0.0])


def test_the_mean_over_heads_is_one_whatever_the_scale(ask):
    mixed = torch.randn(3, 5, 4, 6, dtype=torch.float64)
    found = ask(inactive_heads, fields(mixed))
    torch.testing.assert_close(found.mean(-1), torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(ask(inactive_heads, fields(-7 * mixed)), found)
    assert (found <= 4).all()


def test_a_block_without_output_has_zeros(ask):
    assert ask(inactive_heads, fields(torch.zeros(1, 3, 2, 4))).tolist() == [[0.0, 0.0]]
