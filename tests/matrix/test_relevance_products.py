"""r Abar and Abar x against maps written out, in float64, for every kind of logit; and no map is allocated."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from attnscope.matrix import tiling
from attnscope.matrix.dense import dense_pattern
from attnscope.matrix.logits import mean_pattern_from_left, mean_row_mass
from attnscope.matrix.relevance import AttentionCall, from_left, from_right
from attnscope.matrix.scores import Scores

ROWS, KEYS = 30, 21


def call(rule: dict[str, Any], rows: int = ROWS, keys: int = KEYS, dtype: torch.dtype = torch.float64) -> AttentionCall:
    rng = torch.Generator().manual_seed(0)
    query = torch.randn(2, 4, rows, 8, generator=rng, dtype=dtype)
    key, value = (torch.randn(2, 2, keys, 8, generator=rng, dtype=dtype) for _ in range(2))
    gradient = torch.randn(2, rows, 4, 8, generator=rng, dtype=dtype)
    return AttentionCall("model", "model", 0, Scores(query, key, 0.5, **rule), value, gradient)


def dense(one: AttentionCall) -> Tensor:
    """Abar as the paper writes it: both maps, their product's positive part, the mean over heads."""
    value = one.value.repeat_interleave(2, dim=1)
    of_pattern = one.gradient.transpose(1, 2) @ value.mT
    return (of_pattern * dense_pattern(one.scores)).clamp_min(0).mean(1)


RULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"causal": True, "window": 6},
    "soft-capped": {"softcap": 2.0},
    "sinks": {"sinks": torch.tensor([0.0, 1.0, -1.0, 3.0])},
    "bias": {"bias": torch.randn(1, 4, ROWS, KEYS, generator=torch.Generator().manual_seed(3))},
    "mask": {"allowed": torch.rand(2, 1, ROWS, KEYS, generator=torch.Generator().manual_seed(9)) < 0.2},
    "own map": {"pattern": torch.rand(2, 4, ROWS, KEYS, generator=torch.Generator().manual_seed(9))},
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("small_tiles", [True, False])
def test_both_sides_equal_the_dense_ones(monkeypatch: pytest.MonkeyPatch, rule: str, small_tiles: bool) -> None:
    if small_tiles:
        monkeypatch.setattr(tiling, "TILE_BYTES", 1024)
        monkeypatch.setattr(tiling, "TILE_KEYS", 8)
    one = call(RULES[rule])
    rng = torch.Generator().manual_seed(4)
    r, x = (torch.rand(2, n, generator=rng, dtype=torch.float64) for n in (ROWS, KEYS))
    Abar, A = dense(one), dense_pattern(one.scores).double().mean(1)
    # A handful of float64 roundings in sums of 8 to 30 terms that are below 10.
    close: dict[str, Any] = {"rtol": 0, "atol": 1e-12}
    torch.testing.assert_close(from_left(one, r), (r[:, None] @ Abar)[:, 0], **close)
    torch.testing.assert_close(from_right(one, x), (Abar @ x[..., None])[..., 0], **close)
    torch.testing.assert_close(mean_pattern_from_left(one.scores, r), (r[:, None] @ A)[:, 0], **close)
    torch.testing.assert_close(mean_row_mass(one.scores, torch.float64), A.sum(-1), **close)


def test_rows_with_weight_zero_are_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one row of a long text is read: even NaN in the others does not matter."""
    monkeypatch.setattr(tiling, "PRODUCT_ROWS", 16)
    one = call({})
    one.gradient[:, :8] = torch.nan
    r = torch.zeros(2, ROWS, dtype=torch.float64)
    r[:, -1] = 1
    torch.testing.assert_close(from_left(one, r), dense(one)[:, -1], rtol=0, atol=1e-12)


class _Largest(TorchDispatchMode):
    """Return the size of the largest tensor created inside."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = func(*args, **(kwargs or {}))
        if isinstance(answer, Tensor):
            self.numbers = max(self.numbers, answer.numel())
        return answer


def test_no_map_is_made() -> None:
    """Maps of 4 heads of 2 sequences of 2048 tokens have 33 million numbers; a tile has a quarter of a million."""
    tokens = 2048
    one = call({"causal": True}, tokens, tokens, torch.float32)
    r = torch.rand(2, tokens)
    with _Largest() as largest:
        from_left(one, r)
    assert largest.numbers <= 2 * tiling.TILE_BYTES // 4 < tokens * tokens / 4
