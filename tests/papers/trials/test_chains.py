"""Chained attention: the order of multiplication, limits, and a real forward pass."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnscope.core.errors import RefusalError
from attnscope.matrix.collapse_bounds import dobrushin
from attnscope.matrix.residual import relative_residual
from attnscope.papers.models.nano import Config, Nano
from attnscope.papers.trials.path_chains import chained_residuals, chains, path_pattern


def random_patterns(seed: int, layers: int, heads: int, n: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(layers, heads, n, n, generator=draw, dtype=torch.float64)).softmax(-1)


def test_the_first_layer_stands_rightmost() -> None:
    first, second = random_patterns(0, 2, 1, 4)[:, 0]
    tokens = torch.randn(4, 3, dtype=torch.float64)
    torch.testing.assert_close(path_pattern([first, second]) @ tokens, second @ (first @ tokens))
    # Copying the first token everywhere, then anything: all rows are equal. The other way round they are not.
    copy = torch.zeros(4, 4, dtype=torch.float64)
    copy[:, 0] = 1
    assert float(relative_residual(path_pattern([copy, second])[None])) < 1e-15
    uniform = torch.full((4, 4), 0.25, dtype=torch.float64)
    assert float(relative_residual(path_pattern([second, uniform])[None])) < 1e-15
    with pytest.raises(RefusalError):
        path_pattern([])


@given(st.integers(0, 1000), st.integers(1, 5), st.integers(2, 6))
def test_rows_sum_to_one_and_tau_multiplies(seed: int, layers: int, n: int) -> None:
    patterns = random_patterns(seed, layers, 1, n)[:, 0]
    product = path_pattern(list(patterns))
    torch.testing.assert_close(product.sum(-1), torch.ones(n, dtype=torch.float64))
    assert float(dobrushin(product)) <= float(dobrushin(patterns).prod()) + 1e-12


def test_longer_chains_forget_more_and_draws_repeat() -> None:
    patterns = random_patterns(1, 6, 3, 8)
    found = chained_residuals(patterns, paths=30, seed=4)
    assert found == chained_residuals(patterns, paths=30, seed=4)
    middles = [sorted(values)[15] for values in found.values()]
    assert middles == sorted(middles, reverse=True)
    identity = torch.eye(5, dtype=torch.float64).expand(3, 2, 5, 5)
    kept = chained_residuals(identity, paths=4)
    assert all(value == pytest.approx(kept[1][0]) for values in kept.values() for value in values)


def test_in_a_model() -> None:
    model = Nano(Config(vocab_size=20, width=12, heads=2, layers=3, initial=0.8), seed=0)
    batches = [{"input_ids": torch.randint(0, 20, (1, 9), generator=torch.Generator().manual_seed(0))}] * 2
    found = chains(model, batches, paths=10)
    assert found.lengths == (1, 2, 3)
    assert found.n == (20, 20, 20)
    assert found.median[0] > found.median[1] > found.median[2] > 0
    assert all(low <= mid <= high for low, mid, high in zip(found.low, found.median, found.high, strict=True))
    with pytest.raises(RefusalError, match="single token"):
        chains(model, [{"input_ids": torch.tensor([[1]])}])
