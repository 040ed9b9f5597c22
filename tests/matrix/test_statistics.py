"""The three routes give the same numbers for every kind of attention, precision and padding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.matrix import tiles, tiling
from attnscope.matrix.attend import attend_with_lse
from attnscope.matrix.fused import FUSED_STATISTICS
from attnscope.matrix.scores import Scores
from attnscope.matrix.similarity import OVERLAP_ROWS, sample_rows
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
    """Logits to 8 and 200 keys: statistics in float32, believing the kernel's log-sum-exp, and the dense truth."""
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
def test_float32s_promise_is_broken_by_a_log_sum_exp_of_half_precision(lse_error: float) -> None:
    """A kernel's log-sum-exp from half-precision inputs is good to 1e-4: every statistic must show it, tenfold."""
    scores, fast, truth = float32_and_truth(lse_error)
    bound = promised(scores)
    # One is known to be 1 from the log-sum-exp, one is a cosine, and one has it subtracted and added again.
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


@pytest.mark.parametrize("route", ["auto", "fused", "blocked", "dense"])
def test_fully_padded_sequences_are_zero(route: Route) -> None:
    scores, query_mask, key_mask = make(padding="none", causal=True)
    query_mask[1], key_mask[1] = False, False
    scores = replace(scores, allowed=key_mask[:, None, None, :])
    found = attention_statistics(scores, FUSED_STATISTICS, query_mask=query_mask, key_mask=key_mask, route=route)
    for name, value in found.items():
        assert (value[1] == 0).all(), name
        assert torch.isfinite(value).all(), name


@pytest.mark.parametrize("route", ["auto", "fused", "blocked"])
def test_a_sharp_row_has_entropy_zero(route: Route) -> None:
    key = torch.eye(8)[None, None] * 1000
    mask = torch.ones(1, 8, dtype=torch.bool)
    found = attention_statistics(
        Scores(torch.eye(8)[None, None], key, 1.0),
        ["row_entropy", "self_mass"],
        query_mask=mask,
        key_mask=mask,
        route=route,
    )
    assert (found["row_entropy"] == 0).all()
    assert not torch.signbit(found["row_entropy"]).any()
    torch.testing.assert_close(found["self_mass"], torch.ones_like(found["self_mass"]))


def test_uniform_causal_attention_in_closed_form() -> None:
    n = 300
    zero = torch.zeros(1, 2, n, 4)
    mask = torch.ones(1, n, dtype=torch.bool)
    found = attention_statistics(Scores(zero, zero, 1.0, causal=True), STATISTICS, query_mask=mask, key_mask=mask)
    seen = torch.arange(1, n + 1).float()
    torch.testing.assert_close(found["row_entropy"][0, 0], seen.log(), rtol=0, atol=1e-5)
    torch.testing.assert_close(found["row_sum_squares"][0, 0], 1 / seen, rtol=0, atol=1e-6)
    torch.testing.assert_close(found["mean_distance"][0, 0], (seen - 1) / 2, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found["received"][0, 0], (1 / seen).flip(0).cumsum(0).flip(0), rtol=1e-5, atol=0)
    torch.testing.assert_close(found["head_overlap"][0], torch.ones(2, 2))


@given(
    seed=st.integers(0, 2**16),
    left=st.integers(0, 5),
    right=st.integers(0, 5),
    causal=st.booleans(),
    window=st.sampled_from([None, 3]),
    kv_heads=st.sampled_from([1, 2, 4]),
    route=st.sampled_from(["auto", "fused", "blocked"]),
)
def test_padding_is_invisible(
    *, seed: int, left: int, right: int, causal: bool, window: int | None, kv_heads: int, route: Route
) -> None:
    """Whatever stands in the padding, on whichever side, every number of every real token stays the same."""
    n = 11
    scores, query_mask, key_mask = make(seed=seed, rows=n, kv_heads=kv_heads, size=6.0, causal=causal, window=window)
    want = (*FUSED_STATISTICS, "head_overlap")
    bare = attention_statistics(scores, want, query_mask=query_mask, key_mask=key_mask, route=route)
    generator = torch.Generator().manual_seed(seed + 1)

    def pad(x: Tensor) -> Tensor:
        rubbish = [30 * torch.randn(*x.shape[:2], k, x.shape[3], generator=generator) for k in (left, right)]
        return torch.cat([rubbish[0], x, rubbish[1]], 2)

    mask = torch.zeros(2, left + n + right, dtype=torch.bool)
    mask[:, left : left + n] = True
    padded = replace(scores, query=pad(scores.query), key=pad(scores.key), allowed=mask[:, None, None, :])
    found = attention_statistics(padded, want, query_mask=mask, key_mask=mask, route=route)
    for name, value in found.items():
        if name != "head_overlap":
            assert (value[..., ~mask[0]] == 0).all(), name
            found[name] = value[..., left : left + n]
    assert_agree(found, bare, n, n)


@given(seed=st.integers(0, 2**16), causal=st.booleans(), shift=st.floats(-50, 50))
def test_a_constant_added_to_all_logits_changes_nothing(seed: int, causal: bool, shift: float) -> None:
    scores, query_mask, key_mask = make(seed=seed, rows=13, causal=causal, size=5.0)
    masks: dict[str, Any] = {"query_mask": query_mask, "key_mask": key_mask}
    bias = torch.full((1, 1, 1, 13), shift)
    shifted = attention_statistics(replace(scores, bias=bias), STATISTICS, **masks)
    plain = attention_statistics(scores, STATISTICS, **masks)
    plain["row_top_logit"] = plain["row_top_logit"] + shift  # but the logits themselves
    assert_agree(shifted, plain, 13, 13)


@given(seed=st.integers(0, 2**16), rows=st.integers(1, 30), keys=st.integers(1, 30), causal=st.booleans())
def test_laws_of_stochastic_matrices(seed: int, rows: int, keys: int, causal: bool) -> None:
    scores, query_mask, key_mask = make(seed=seed, rows=rows, keys=keys, causal=causal, size=4.0)
    found = attention_statistics(scores, STATISTICS, query_mask=query_mask, key_mask=key_mask)
    torch.testing.assert_close(found["row_mass"], torch.ones_like(found["row_mass"]))
    torch.testing.assert_close(found["received"].sum(-1), found["row_mass"].sum(-1))
    assert (found["row_entropy"] <= torch.log(torch.tensor(float(keys))) + 1e-5).all()
    assert (found["row_peak"] ** 2 <= found["row_sum_squares"] + 1e-6).all()
    assert (found["row_sum_squares"] <= found["row_peak"] + 1e-6).all()
    assert (torch.exp(-found["row_entropy"]) <= found["row_sum_squares"] + 1e-5).all()


@given(before=st.integers(0, 5), real=st.integers(1, 100), after=st.integers(0, 5))
def test_sampled_rows_are_even_and_ignore_padding(before: int, real: int, after: int) -> None:
    mask = torch.tensor([[False] * before + [True] * real + [False] * after])
    rows, counts = sample_rows(mask)
    chosen = rows[counts].tolist()
    step = -(-real // OVERLAP_ROWS)
    assert 1 <= len(chosen) <= OVERLAP_ROWS
    assert len(chosen) >= min(real, OVERLAP_ROWS // 2)
    assert chosen == list(range(before + step - 1, before + real, step))


@pytest.mark.parametrize("route", ["blocked", "dense"])
def test_heads_with_disjoint_support_do_not_overlap(route: Route) -> None:
    """One head looks at even keys, the other at odd ones; only row 0 has no choice."""
    n = 200
    parity = torch.arange(n) % 2
    bias = torch.stack([-1e4 * parity, -1e4 * (1 - parity)]).float()[None, :, None].expand(1, 2, n, n).clone()
    scores = Scores(torch.zeros(1, 2, n, 4), torch.zeros(1, 2, n, 4), scale=1.0, causal=True, bias=bias)
    real = torch.ones(1, n, dtype=torch.bool)
    found = attention_statistics(scores, ["head_overlap"], query_mask=real, key_mask=real, route=route)
    assert found["head_overlap"][0, 0, 1] < 0.01


@pytest.mark.parametrize("given_lse", [False, True])
def test_nan_stays_nan_and_harms_no_other_sequence(given_lse: bool) -> None:
    """A model that makes NaN must not be reported as one that looks at nothing."""
    torch.manual_seed(0)
    query, key = torch.randn(2, 3, 40, 8), torch.randn(2, 3, 40, 8)
    broken = query.clone()
    broken[1] = float("nan")
    real = torch.ones(2, 40, dtype=torch.bool)
    sound = attention_statistics(Scores(query, key, 0.3, causal=True), STATISTICS, query_mask=real, key_mask=real)
    lse = attend_with_lse(broken, key, key, is_causal=True, scale=0.3)[1] if given_lse else None
    scores = Scores(broken, key, 0.3, causal=True, lse=lse)
    found = attention_statistics(scores, STATISTICS, query_mask=real, key_mask=real, accumulate=torch.float32)
    for name in ("row_entropy", "row_sum_squares", "first_key_mass", "received"):
        assert found[name][1].isnan().all(), name
        torch.testing.assert_close(found[name][0], sound[name][0].float(), atol=1e-5, rtol=1e-5)


def test_nan_in_padding_changes_no_statistic() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(1, 2, 12, 8), torch.randn(1, 2, 12, 8)
    real = torch.arange(12)[None] < 9
    allowed = real[:, None, None, :]
    sound = attention_statistics(Scores(query, key, 0.3, allowed=allowed), STATISTICS, query_mask=real, key_mask=real)
    query[:, :, 9:], key[:, :, 9:] = float("nan"), float("nan")
    found = attention_statistics(Scores(query, key, 0.3, allowed=allowed), STATISTICS, query_mask=real, key_mask=real)
    for name, value in found.items():
        torch.testing.assert_close(value, sound[name], atol=1e-6, rtol=1e-6)


def test_overlap_with_holes_in_the_mask() -> None:
    scores, query_mask, key_mask = make(size=10.0)
    query_mask[0, ::3] = False
    check_routes(scores, query_mask, key_mask)


def test_an_unknown_statistic_is_refused_with_the_nearest_name() -> None:
    scores, query_mask, key_mask = make()
    with pytest.raises(RefusalError, match="Did you mean 'row_entropy'"):
        attention_statistics(scores, ["row_entropi"], query_mask=query_mask, key_mask=key_mask)


def test_the_fused_route_refuses_unsupported_scores() -> None:
    scores, query_mask, key_mask = make(softcap=5.0)
    masks: dict[str, Any] = {"query_mask": query_mask, "key_mask": key_mask}
    with pytest.raises(RefusalError, match="blocked"):
        attention_statistics(scores, ["row_entropy"], route="fused", **masks)
    with pytest.raises(RefusalError, match="row_peak"):
        attention_statistics(replace(scores, softcap=None), ["row_peak"], route="fused", **masks)
