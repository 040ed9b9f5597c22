import pytest
import torch

from attnscope.measures.head_contribution import CONTRIBUTION_TOKENS, head_contribution


def _random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _fields(mixed: torch.Tensor, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"mixed": mixed, "output_weight": weight, "query_mask": torch.ones(mixed.shape[:2], dtype=torch.bool)}


def test_by_hand(ask):
    # One token, two heads of one value: head 0 writes (1, -2) with l1 norm 3, head 1 writes (0, 1).
    mixed = torch.ones(1, 1, 2, 1)
    weight = torch.tensor([[[1.0, -2.0]], [[0.0, 1.0]]])
    assert ask(head_contribution, _fields(mixed, weight)).tolist() == [[0.75, 0.25]]


def test_the_median_token_decides(ask):
    mixed = torch.ones(1, 4, 2, 1)
    mixed[0, :, 0, 0] = torch.tensor([1.0, 3.0, 0.0, 9.0])  # shares of head 0: 1/2, 3/4, 0, 9/10
    weight = torch.ones(2, 1, 1)
    assert ask(head_contribution, _fields(mixed, weight)).tolist() == [[pytest.approx(0.625), pytest.approx(0.375)]]


def test_contributions_of_one_token_sum_to_one(ask):
    shares = ask(head_contribution, _fields(_random(0, 5, 1, 6, 3), _random(1, 6, 3, 8)))
    torch.testing.assert_close(shares.sum(dim=-1), torch.ones(5, dtype=torch.float64))


def test_against_all_tokens_of_short_sequences(ask):
    mixed, weight = _random(2, 3, CONTRIBUTION_TOKENS, 4, 3), _random(3, 4, 3, 7)
    written = torch.einsum("bqhv,hvw->bqhw", mixed, weight).abs().sum(dim=-1)
    expected = (written / written.sum(dim=-1, keepdim=True)).quantile(0.5, dim=1)
    torch.testing.assert_close(ask(head_contribution, _fields(mixed, weight)), expected)


def test_long_sequences_use_evenly_spaced_tokens(ask):
    mixed, weight = _random(4, 2, 3 * CONTRIBUTION_TOKENS, 4, 3), _random(5, 4, 3, 7)
    torch.testing.assert_close(
        ask(head_contribution, _fields(mixed, weight)), ask(head_contribution, _fields(mixed[:, ::3], weight))
    )


def test_bound_and_invariance(ask):
    mixed, weight = _random(6, 2, 9, 4, 3), _random(7, 4, 3, 7)
    value = ask(head_contribution, _fields(mixed, weight))
    assert ((value > 0) & (value < 1)).all()
    torch.testing.assert_close(ask(head_contribution, _fields(5.0 * mixed, weight)), value)
    spin = torch.linalg.qr(_random(8, 3, 3)).Q
    torch.testing.assert_close(ask(head_contribution, _fields(mixed @ spin, spin.mT @ weight)), value)
