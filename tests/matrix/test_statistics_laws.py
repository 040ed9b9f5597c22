"""Laws of attention statistics: padding, closed forms, constants, NaN and refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.matrix.attend import attend_with_lse
from attnscope.matrix.fused import FUSED_STATISTICS
from attnscope.matrix.scores import Scores
from attnscope.matrix.similarity import OVERLAP_ROWS, sample_rows
from attnscope.matrix.statistics import STATISTICS, Route, attention_statistics
from tests.matrix.test_statistics import assert_agree, check_routes, make


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
    """Padding of any content, on either side, changes no number of a real token."""
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
    statistics = attention_statistics(padded, want, query_mask=mask, key_mask=mask, route=route)
    for name, value in statistics.items():
        if name != "head_overlap":
            assert (value[..., ~mask[0]] == 0).all(), name
            statistics[name] = value[..., left : left + n]
    assert_agree(statistics, bare, n, n)


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
    """NaN in a model must not be reported as attention to nothing."""
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
