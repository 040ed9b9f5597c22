import pytest
import torch

from attnscope.measures.ov_norm import ov_norm


def _ask(value: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    return ov_norm(value_weight=value, output_weight=output)["value"].value


def test_by_hand():
    value = torch.tensor([[[3.0, 0.0], [0.0, 1.0], [0.0, 0.0]]])
    output = torch.tensor([[[0.0, 2.0, 0.0], [5.0, 0.0, 0.0]]])
    assert _ask(value, output).item() == pytest.approx(6.0)  # singular values 3 * 2 and 1 * 5
    assert _ask(0 * value, output).item() == 0.0


def test_no_token_is_stretched_further_and_one_is():
    value, output = torch.randn(4, 12, 3, dtype=torch.float64), torch.randn(4, 3, 10, dtype=torch.float64)
    norm = _ask(value, output)
    tokens = torch.randn(4, 200, 12, dtype=torch.float64)
    stretched = (tokens @ value @ output).norm(dim=-1) / tokens.norm(dim=-1)
    assert (stretched.amax(dim=-1) <= norm).all()
    torch.testing.assert_close(norm, torch.linalg.svdvals(value @ output)[:, 0])


def test_invariant_under_a_change_of_basis_inside_the_head():
    value, output = torch.randn(2, 8, 3, dtype=torch.float64), torch.randn(2, 3, 8, dtype=torch.float64)
    change = torch.randn(3, 3, dtype=torch.float64) + 3 * torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close(_ask(value @ change, torch.linalg.inv(change) @ output), _ask(value, output))
