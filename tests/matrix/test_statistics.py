"""The three routes give the same numbers for every kind of attention, precision and padding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from attnscope.matrix import tiles, tiling
from attnscope.matrix.attend import attend_with_lse
from attnscope.matrix.fused import FUSED_STATISTICS
from attnscope.matrix.scores import Scores
from attnscope.matrix.statistics import STATISTICS, Route, attention_statistics
from tests.matrix.float_error import promised

KINDS: dict[str, dict[str, Any]] = {
    "causal": {"causal": True},
    "bidirectional": {},
    "causal window": {"causal": True, "window": 7},
    "bidirectional window": {"window": 5},
}
PADDINGS = ("none", "left", "right")


def make(
    *,
    seed: int = 0,
    batch: int = 2,
    heads: int = 4,
    kv_heads: int = 4,
    rows: int = 40,
    keys: int | None = None,
    dim: int = 16,
    size: float = 1.0,
    dtype: torch.dtype = torch.float32,
    padding: str = "none",
    **rule: Any,
) -> tuple[Scores, Tensor, Tensor]:
    """Scores whose largest logit is about `size`, with the masks of a batch padded by 0, 9, 18 ... tokens."""
    generator = torch.Generator().manual_seed(seed)
    keys = rows if keys is None else keys
    query = torch.randn(batch, heads, rows, dim, generator=generator)
    key = torch.randn(batch, kv_heads, keys, dim, generator=generator)
    largest = (query @ key.repeat_interleave(heads // kv_heads, 1).mT).abs().amax()
    query_mask, key_mask = (torch.ones(batch, n, dtype=torch.bool) for n in (rows, keys))
    allowed = rule.pop("allowed", None)
    if padding != "none":
        for sequence in range(batch):
            pad = 9 * sequence
            cut = slice(0, pad) if padding == "left" else slice(rows - pad, rows)
            query_mask[sequence, cut] = False
            key_mask[sequence, slice(0, pad) if padding == "left" else slice(keys - pad, keys)] = False
        allowed = key_mask[:, None, None, :].expand(batch, 1, rows, keys)
    scores = Scores(query.to(dtype), key.to(dtype), size / float(largest), allowed=allowed, **rule)
    return scores, query_mask, key_mask


def assert_agree(found: dict[str, Tensor], truth: dict[str, Tensor], rows: int, keys: int) -> None:
    """1e-5 on entropies, 1e-6 on masses; a column sums `rows` masses, a distance `keys` times masses. A row's mass goes
    through two sums of `keys` terms, its own and the log-sum-exp's, each off by sqrt(keys) roundings of float32. A
    logit of at most 8 (beyond, float64 is used) of 16 terms is off by sqrt(17) 8 2^-24, and by 2^-24 of numbers up to
    8 + ln(keys) where lse is taken from it and put back: 5e-6 together."""
    assert found.keys() == truth.keys()
    for name, value in found.items():
        reach = {"row_entropy": 1e-5, "received": 1e-6 * max(1, rows**0.5), "mean_distance": 1e-6 * keys}
        reach["mass_by_distance"] = reach["received"]
        reach["row_mass"] = 1e-6 + 2 * keys**0.5 * 2.0**-24
        reach["row_top_logit"] = 5e-6
        assert torch.isfinite(value).all(), name
        assert name == "row_top_logit" or (value >= 0).all(), name
        torch.testing.assert_close(
            value.double(), truth[name].double(), rtol=0, atol=reach.get(name, 1e-6), msg=f"{name}: {{}}".format
        )


def check_routes(scores: Scores, query_mask: Tensor, key_mask: Tensor) -> None:
    masks: dict[str, Any] = {"query_mask": query_mask, "key_mask": key_mask}
    truth = attention_statistics(scores, STATISTICS, route="dense", **masks)
    rows, keys = query_mask.shape[1], key_mask.shape[1]
    routes: tuple[Route, ...] = ("blocked", "auto")
    for route in routes:
        assert_agree(attention_statistics(scores, STATISTICS, route=route, **masks), truth, rows, keys)
    if scores.plain:
        want = (*FUSED_STATISTICS, "head_overlap")
        fused = attention_statistics(scores, want, route="fused", **masks)
        assert_agree(fused, {name: truth[name] for name in want}, rows, keys)


@pytest.mark.parametrize("size", [1.0, 30.0, 1000.0])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_routes_agree(kind: str, padding: str, size: float) -> None:
    check_routes(*make(padding=padding, size=size, **KINDS[kind]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_grouped_heads_and_precisions(kind: str, dtype: torch.dtype) -> None:
    check_routes(*make(kv_heads=2, dtype=dtype, size=20.0, padding="left", **KINDS[kind]))


@pytest.mark.parametrize(("rows", "keys"), [(40, 23), (23, 40), (1, 17), (17, 1), (40, 3)])
@pytest.mark.parametrize("kind", KINDS)
def test_cross_attention(kind: str, rows: int, keys: int) -> None:
    check_routes(*make(rows=rows, keys=keys, kv_heads=2, size=40.0, **KINDS[kind]))


@pytest.mark.parametrize(
    "rule",
    [
        {"softcap": 5.0},
        {"sinks": torch.tensor([-1.0, 0.0, 2.0, 6.0])},
        {"bias": torch.randn(1, 4, 40, 40, generator=torch.Generator().manual_seed(1))},
        {"bias": -0.5 * (torch.arange(40)[:, None] - torch.arange(40)).abs().float()[None, None]},
        {"bias": torch.randn(2, 1, 1, 40, generator=torch.Generator().manual_seed(2)).to(torch.bfloat16)},
        {"softcap": 3.0, "sinks": torch.ones(4), "bias": torch.ones(1, 1, 1, 40).tril()},
    ],
    ids=["softcap", "sinks", "bias", "distance bias", "key bias", "all"],
)
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("causal", [True, False])
def test_other_logits(rule: dict[str, Any], padding: str, causal: bool) -> None:
    check_routes(*make(padding=padding, causal=causal, size=10.0, **rule))


def test_bias_of_minus_infinity_forbids() -> None:
    scores, query_mask, key_mask = make(size=10.0)
    forbidden = torch.rand(2, 4, 40, 40, generator=torch.Generator().manual_seed(3)) < 0.4
    bias = torch.zeros(2, 4, 40, 40).masked_fill(forbidden, float("-inf"))
    bias[0, 1, 7] = float("-inf")
    check_routes(replace(scores, bias=bias), query_mask, key_mask)
    masks: dict[str, Any] = {"query_mask": query_mask, "key_mask": key_mask}
    by_bias = attention_statistics(replace(scores, bias=bias), STATISTICS, **masks)
    by_mask = attention_statistics(replace(scores, allowed=~forbidden & (bias > -1)), STATISTICS, **masks)
    assert_agree(by_bias, by_mask, 40, 40)


@pytest.mark.parametrize("lse_from", ["kernel", "nobody"])
def test_many_tiles(monkeypatch: pytest.MonkeyPatch, lse_from: str) -> None:
    """Tiles far smaller than the pattern, so that every kind of edge falls inside one."""
    monkeypatch.setattr(tiling, "TILE_BYTES", 2048)
    monkeypatch.setattr(tiling, "TILE_KEYS", 11)
    monkeypatch.setattr(tiling, "PRODUCT_ROWS", 32)
    for rule in KINDS.values():
        for keys in (40, 23, 61):
            scores, query_mask, key_mask = make(kv_heads=2, keys=keys, size=5.0, **rule)
            if lse_from == "kernel" and scores.window is None:
                value = torch.zeros_like(scores.key)
                _, lse = attend_with_lse(
                    scores.query, scores.key, value, is_causal=scores.causal, scale=scores.scale, enable_gqa=True
                )
                scores = replace(scores, lse=lse)
            check_routes(scores, query_mask, key_mask)


def test_random_masks_by_head() -> None:
    allowed = torch.rand(2, 4, 40, 40, generator=torch.Generator().manual_seed(4)) < 0.1
    scores, query_mask, key_mask = make(size=50.0, allowed=allowed)
    assert not allowed.any(-1).all(), "some row sees nothing"
    check_routes(scores, query_mask, key_mask)


def test_a_given_pattern_is_read() -> None:
    scores, query_mask, key_mask = make(size=10.0, padding="right")
    pattern = torch.softmax(torch.randn(2, 4, 40, 40, generator=torch.Generator().manual_seed(5)), -1)
    check_routes(replace(scores, pattern=pattern), query_mask, key_mask)


def float32_and_truth(lse_error: float = 0.0) -> tuple[Scores, dict[str, Tensor], dict[str, Tensor]]:
    """Return float32 statistics with the kernel's log-sum-exp, and dense ones, for logits up to 8 and 200 keys."""
    scores, query_mask, key_mask = make(rows=200, size=8.0, causal=True, kv_heads=2)
    _, lse = attend_with_lse(scores.query, scores.key, scores.key, is_causal=True, scale=scores.scale, enable_gqa=True)
    assert lse is not None
    masks: dict[str, Any] = {"query_mask": query_mask, "key_mask": key_mask}
    given = replace(scores, lse=lse + lse_error)
    fast = attention_statistics(given, STATISTICS, accumulate=torch.float32, **masks)
    return scores, fast, attention_statistics(scores, STATISTICS, route="dense", **masks)


def test_float32_with_the_kernels_lse_stays_within_its_error_bound() -> None:
    """The bound follows from the logits and the length: float_error.py derives it."""
    scores, fast, truth = float32_and_truth()
    bound = promised(scores)
    assert fast.keys() == truth.keys() == bound.keys()
    for name, value in fast.items():
        assert value.dtype == torch.float32
        assert name == "row_top_logit" or (value >= 0).all(), name
        assert ((value.double() - truth[name]).abs() <= bound[name]).all(), name


@pytest.mark.parametrize("lse_error", [1e-4, -1e-4])
def test_half_precision_lse_breaks_the_float32_error_bound(lse_error: float) -> None:
    """A kernel's log-sum-exp from half-precision inputs is good to 1e-4: every statistic must show it, tenfold."""
    scores, fast, truth = float32_and_truth(lse_error)
    bound = promised(scores)
    # row_mass is set to 1, head_overlap is a cosine, and row_top_logit subtracts the log-sum-exp and adds it again.
    scale_free = {"row_mass", "head_overlap", "row_top_logit"}
    for name in set(STATISTICS) - scale_free:
        assert ((fast[name].double() - truth[name]).abs() > 10 * bound[name]).any(), name


@pytest.mark.parametrize("name", STATISTICS)
def test_one_key_too_many_breaks_the_float32_error_bound(name: str) -> None:
    """A pattern that sees one key ahead is off by far more than float32 allows, in each statistic."""
    scores, _, truth = float32_and_truth()
    real = torch.ones(2, 200, dtype=torch.bool)
    ahead = torch.ones(200, 200, dtype=torch.bool).tril(1)[None, None]
    other = replace(scores, causal=False, allowed=ahead, lse=None)
    wrong = attention_statistics(other, [name], query_mask=real, key_mask=real, accumulate=torch.float32)[name]
    if name == "row_mass":
        wrong = wrong + 1e-4  # every row sums to 1, whatever it sees
    assert ((wrong.double() - truth[name]).abs() > 10 * promised(scores)[name]).any()


def test_single_masses_need_no_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, query_mask, key_mask = make(size=3.0, padding="left", causal=True)
    want = ("first_key_mass", "self_mass", "previous_mass")
    masks: dict[str, Any] = {"query_mask": query_mask, "key_mask": key_mask}
    truth = attention_statistics(scores, want, route="dense", **masks)
    scores = replace(scores, lse=tiles.row_lse(scores))
    monkeypatch.setattr("attnscope.matrix.statistics.blocked_statistics", None)
    assert_agree(attention_statistics(scores, want, **masks), truth, 40, 40)
