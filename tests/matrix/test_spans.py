"""Mass by distance equals the definition, entry by entry, for every kind of mask; what counts as a sink key."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnscope.matrix import tiling
from attnscope.matrix.dense import dense_pattern
from attnscope.matrix.scores import Scores
from attnscope.matrix.spans import diagonal_sums, fold, sink_keys
from attnscope.matrix.statistics import Route, attention_statistics
from tests.matrix.test_statistics import KINDS, PADDINGS, make


def by_definition(scores: Scores, query_mask: Tensor, key_mask: Tensor) -> Tensor:
    """Return the mass at each distance in float64, by loops over sequences, heads, rows and keys."""
    pattern = dense_pattern(scores)
    batch, heads, rows, keys = pattern.shape
    found = torch.zeros(batch, heads, max(rows, keys), dtype=torch.float64)
    for b in range(batch):
        first = int(key_mask[b].nonzero()[0]) if key_mask[b].any() else -1
        real = [i for i in range(rows) if query_mask[b, i]]
        bar = max(0.3, 2 / max(1, int(key_mask[b].sum()))) * len(real)
        for h in range(heads):
            for j in range(keys):
                column = [float(pattern[b, h, i, j]) for i in real]
                if key_mask[b, j] and j != first and sum(column) <= bar:
                    for i, mass in zip(real, column, strict=True):
                        found[b, h, abs(i - j)] += mass
    return found


def measured(scores: Scores, query_mask: Tensor, key_mask: Tensor, route: Route = "auto") -> Tensor:
    want = ["mass_by_distance"]
    return attention_statistics(scores, want, query_mask=query_mask, key_mask=key_mask, route=route)[want[0]]


def with_sink(scores: Scores, key: int, by: float) -> Scores:
    """Return scores in which a key of the first head draws most of the attention."""
    bias = torch.zeros(1, scores.query.shape[1], 1, scores.key.shape[2])
    bias[0, 0, 0, key] = by
    return Scores(**{**vars(scores), "bias": bias})


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("sink", [None, 12])
def test_equals_the_definition(kind: str, padding: str, kv_heads: int, sink: int | None) -> None:
    scores, query_mask, key_mask = make(rows=24, padding=padding, kv_heads=kv_heads, size=4.0, **KINDS[kind])
    if sink is not None:
        scores = with_sink(scores, sink, 6.0)
        heavy = sink_keys(dense_pattern(scores).sum(-2), query_mask, key_mask)
        assert heavy[0, 0, sink] or scores.window, "the first head has a sink that is not its first key"
        assert not heavy[0, 1, sink]
    truth = by_definition(scores, query_mask, key_mask)
    for route in ("dense", "blocked", "auto"):
        torch.testing.assert_close(measured(scores, query_mask, key_mask, route).double(), truth, rtol=0, atol=1e-5)


@pytest.mark.parametrize("rule", [{"softcap": 5.0}, {"sinks": torch.tensor([-1.0, 0.0, 2.0, 6.0])}, {"causal": True}])
def test_sinks_elsewhere_are_left_out_of_many_tiles(monkeypatch: pytest.MonkeyPatch, rule: dict[str, Any]) -> None:
    monkeypatch.setattr(tiling, "TILE_BYTES", 2048)
    monkeypatch.setattr(tiling, "TILE_KEYS", 11)
    monkeypatch.setattr(tiling, "PRODUCT_ROWS", 32)
    scores, query_mask, key_mask = make(rows=40, size=3.0, kv_heads=2, **rule)
    scores = with_sink(scores, 3, 8.0)
    truth = by_definition(scores, query_mask, key_mask)
    torch.testing.assert_close(measured(scores, query_mask, key_mask).double(), truth, rtol=0, atol=1e-5)


def test_a_given_pattern_with_a_sink_elsewhere() -> None:
    scores, query_mask, key_mask = make(rows=16, padding="left")
    logits = torch.randn(2, 4, 16, 16, generator=torch.Generator().manual_seed(5))
    logits[..., 13] += 6.0
    scores = Scores(
        scores.query, scores.key, 1.0, pattern=logits.masked_fill(~key_mask[:, None, None], -1e9).softmax(-1)
    )
    assert sink_keys(dense_pattern(scores).sum(-2), query_mask, key_mask)[:, :, 13].all()
    truth = by_definition(scores, query_mask, key_mask)
    torch.testing.assert_close(measured(scores, query_mask, key_mask).double(), truth, rtol=0, atol=1e-5)


@given(rows=st.integers(1, 70), keys=st.integers(1, 70), lead=st.integers(1, 3), seed=st.integers(0, 99))
def test_diagonal_sums_of_any_tile(rows: int, keys: int, lead: int, seed: int) -> None:
    tile = torch.rand(lead, rows, keys, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    truth = torch.stack([tile.diagonal(d, -2, -1).sum(-1) for d in range(1 - rows, keys)], -1)
    torch.testing.assert_close(diagonal_sums(tile.clone()), truth)
    folded = fold(truth[None], rows)[0]
    torch.testing.assert_close(folded.sum(-1), tile.sum((-2, -1)))
    assert folded.shape[-1] == max(rows, keys)


@given(
    seed=st.integers(0, 2**16), causal=st.booleans(), size=st.sampled_from([1.0, 8.0, 60.0]), rows=st.integers(2, 90)
)
def test_what_is_left_is_all_mass_but_that_of_sinks(seed: int, causal: bool, size: float, rows: int) -> None:
    scores, query_mask, key_mask = make(seed=seed, rows=rows, size=size, causal=causal)
    want = ["mass_by_distance", "received"]
    found = attention_statistics(scores, want, query_mask=query_mask, key_mask=key_mask)
    kept = found["received"].masked_fill(sink_keys(found["received"], query_mask, key_mask), 0.0)
    torch.testing.assert_close(found["mass_by_distance"].sum(-1), kept.sum(-1), rtol=1e-4, atol=1e-4)


def test_no_key_is_a_sink_under_uniform_attention_but_the_first() -> None:
    for causal in (True, False):
        for n in range(1, 40):
            zero, mask = torch.zeros(1, 1, n, 4), torch.ones(1, n, dtype=torch.bool)
            pattern = dense_pattern(Scores(zero, zero, 1.0, causal=causal))
            assert sink_keys(pattern.sum(-2), mask, mask)[0, 0].nonzero().flatten().tolist() == [0], (n, causal)


def test_a_key_is_a_sink_above_three_tenths_of_all_attention() -> None:
    mask = torch.ones(1, 10, dtype=torch.bool)
    received = torch.tensor([[[0.0, 3.1, 2.9, 0, 0, 0, 0, 0, 0, 4.0]]])
    assert sink_keys(received, mask, mask)[0, 0].nonzero().flatten().tolist() == [0, 1, 9]
    short = mask[:, :4]
    assert sink_keys(torch.tensor([[[0.0, 1.9, 2.1, 0.0]]]), short, short)[0, 0].tolist() == [True, False, True, False]


def test_the_first_real_key_is_a_sink_behind_padding() -> None:
    mask = torch.tensor([[False, False, True, True, True], [False] * 5])
    found = sink_keys(torch.zeros(2, 1, 5), mask, mask)[:, 0]
    assert found.tolist() == [[False, False, True, False, False], [False] * 5]
