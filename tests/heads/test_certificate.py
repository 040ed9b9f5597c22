"""The certificate: against the dense definition, in blocks, with non-finite numbers; and its bound on rounding."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnscope.core.errors import RefusalError
from attnscope.heads import certificate
from attnscope.heads.accuracy import Accuracy
from attnscope.heads.bounds import lower_bounds
from attnscope.heads.certificate import UNITS, certify, logits_and_slack, lowest_bit, step_of
from attnscope.heads.generate import union_of_permutations
from attnscope.heads.head import Head
from attnscope.heads.pattern import Pattern


def some_pattern(rng: np.random.Generator, n: int, n_keys: int, causal: bool) -> Pattern:
    wanted = rng.random((n, n_keys)) * (rng.random((n, n_keys)) < 0.4)
    wanted[np.arange(n), np.minimum(np.arange(n), n_keys - 1)] = 0.5
    if causal:
        wanted = np.tril(wanted)
    rows, columns = wanted.nonzero()
    return Pattern.of(rows, columns, wanted[rows, columns], n=n, n_keys=n_keys, causal=causal, normalise=True)


def some_head(rng: np.random.Generator, pattern: Pattern, width: int, dtype: torch.dtype = torch.float64) -> Head:
    queries, keys = rng.standard_normal((pattern.n, width)), rng.standard_normal((pattern.n_keys, width))
    return Head(torch.from_numpy(3 * queries).to(dtype), torch.from_numpy(keys).to(dtype), pattern.causal, "chance")


def by_the_docs() -> Callable[..., tuple[float, float]]:
    """The lines of numpy that docs/patterns.md gives for checking a certificate."""
    page = (Path(__file__).parents[2] / "docs" / "patterns.md").read_text(encoding="utf-8")
    code = next(block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "def errors" in block)
    names: dict[str, Any] = {"np": np}
    exec(code, names)
    errors: Callable[..., tuple[float, float]] = names["errors"]
    return errors


ERRORS = by_the_docs()


settings = given(seed=st.integers(0, 10_000), n=st.integers(1, 9), extra=st.integers(0, 3), causal=st.booleans())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@settings
def test_equals_the_lines_of_numpy_in_the_docs(dtype: torch.dtype, seed: int, n: int, extra: int, causal: bool) -> None:
    rng = np.random.default_rng(seed)
    pattern = some_pattern(rng, n, n + extra, causal)
    head = some_head(rng, pattern, 4 + seed % 2, dtype)
    ratio, leak = ERRORS(*head.arrays(), pattern.dense(), causal)
    found = certify(head, pattern, Accuracy(ratio_error=2.0, leak=0.5))
    assert found.ratio_error == pytest.approx(ratio, rel=1e-9, abs=1e-12)
    assert found.leak == pytest.approx(leak, rel=1e-9, abs=1e-15)
    assert found.reached == (ratio <= 2 and leak <= 0.5)
    assert found.reached == (found.failing == 0)


def test_means_are_over_rows_and_failing_rows_are_those_above() -> None:
    rng = np.random.default_rng(3)
    pattern = some_pattern(rng, 9, 9, False)
    head, dense = some_head(rng, pattern, 4), pattern.dense()
    each = np.array([ERRORS(head.queries[i : i + 1].numpy(), head.keys.numpy(), dense[i : i + 1]) for i in range(9)])
    found = certify(head, pattern, Accuracy(ratio_error=50.0, leak=0.9))
    assert found.mean_ratio_error == pytest.approx(each[:, 0].mean(), rel=1e-9)
    assert found.mean_leak == pytest.approx(each[:, 1].mean(), rel=1e-9)
    assert found.failing_rows == tuple(np.flatnonzero((each[:, 0] > 50) | (each[:, 1] > 0.9)))
    assert 0 < found.failing < 9


@settings
def test_permuting_rows_and_columns_of_both_changes_nothing(seed: int, n: int, extra: int, causal: bool) -> None:
    rng = np.random.default_rng(seed)
    pattern = some_pattern(rng, n, n + extra, causal=False)
    head = some_head(rng, pattern, 3)
    rows, columns = rng.permutation(n), rng.permutation(n + extra)
    dense = pattern.dense()[rows][:, columns]
    at = dense.nonzero()
    moved = Pattern.of(at[0], at[1], dense[at], n=n, n_keys=n + extra)
    moved_head = dataclasses.replace(head, queries=head.queries[rows], keys=head.keys[columns])
    before, after = (certify(h, p, Accuracy()) for h, p in ((head, pattern), (moved_head, moved)))
    assert after.ratio_error == pytest.approx(before.ratio_error, rel=1e-9)
    assert after.leak == pytest.approx(before.leak, rel=1e-9)
    assert after.failing == before.failing
    assert sorted(rows[list(after.failing_rows)]) == list(before.failing_rows)


@settings
def test_scaling_rows_before_normalising_changes_nothing(seed: int, n: int, extra: int, causal: bool) -> None:
    rng = np.random.default_rng(seed)
    pattern = some_pattern(rng, n, n + extra, causal)
    head = some_head(rng, pattern, 3)
    scaled = pattern.weights * 2.0 ** rng.integers(-5, 6, n)[pattern.rows]
    again = Pattern.of(pattern.rows, pattern.columns, scaled, n=n, n_keys=n + extra, causal=causal, normalise=True)
    before, after = (certify(head, p, Accuracy()) for p in (pattern, again))
    assert after.leak == before.leak
    assert after.ratio_error == pytest.approx(before.ratio_error, rel=1e-9, abs=1e-12)
    assert after.failing_rows == before.failing_rows


@pytest.mark.parametrize("causal", [False, True])
def test_blocks_of_rows_agree_with_the_whole(monkeypatch: pytest.MonkeyPatch, causal: bool) -> None:
    rng = np.random.default_rng(0)
    pattern = some_pattern(rng, 23, 23, causal)
    head = some_head(rng, pattern, 5)
    whole = certify(head, pattern, Accuracy())
    monkeypatch.setattr(certificate, "BLOCK_ELEMENTS", 3 * 23 + 1)
    blocked = certify(head, pattern, Accuracy())
    assert blocked.failing_rows == whole.failing_rows
    for name in ("ratio_error", "mean_ratio_error", "leak", "mean_leak", "zero_ratio", "max_logit"):
        assert getattr(blocked, name) == pytest.approx(getattr(whole, name), rel=1e-12)


def perfect(n: int, dtype: torch.dtype = torch.float32) -> tuple[Pattern, Head]:
    pattern = union_of_permutations(n, 1, 0)
    keys = torch.eye(n, dtype=dtype)
    return pattern, Head(50 * n**0.5 * keys[torch.from_numpy(pattern.columns)], keys, False, "one coordinate per key")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("tensor", ["queries", "keys"])
def test_a_number_that_is_not_finite_fails_its_rows(value: float, tensor: str) -> None:
    pattern, head = perfect(6)
    assert certify(head, pattern, Accuracy()).reached
    broken = getattr(head, tensor).clone()
    broken[2] = value
    found = certify(dataclasses.replace(head, **{tensor: broken}), pattern, Accuracy())
    assert not found.reached
    if tensor == "queries":
        assert found.failing_rows == (2,)
        assert found.max_logit == np.inf


def test_masked_keys_are_free_for_a_causal_head_only() -> None:
    pattern = Pattern.of(np.arange(5), np.arange(5), np.ones(5), n=5, causal=True)
    keys = torch.arange(5.0)[:, None]  # each key above all earlier ones: the diagonal, once the future is hidden
    head = Head(torch.full((5, 1), 10.0), keys, True, "line")
    assert certify(head, pattern, Accuracy()).reached
    open_head = dataclasses.replace(head, causal=False)
    assert certify(open_head, pattern, Accuracy()).failing_rows == (0, 1, 2, 3)


def test_large_float32_logits_are_compared_as_softmax_compares_them() -> None:
    """At 2^24 the spacing of float32 is 2: a leak computed from absolute log-sum-exps would be off by that much."""
    keys = torch.tensor([[2.0**24], [2.0**24 - 4], [2.0**24 - 4], [2.0**24 - 4]])
    pattern = Pattern.of(np.array([0]), np.array([0]), np.ones(1), n=1, n_keys=4)
    found = certify(Head(torch.ones(1, 1), keys, False, "hand"), pattern, Accuracy())
    assert found.leak == pytest.approx(3 * np.exp(-4) / (1 + 3 * np.exp(-4)), rel=1e-6)
    assert found.zero_ratio == pytest.approx(np.exp(-4))


def test_a_pattern_without_zeros_cannot_leak() -> None:
    rows, columns = np.ones((3, 2)).nonzero()
    pattern = Pattern.of(rows, columns, np.full(6, 0.5), n=3, n_keys=2)
    found = certify(Head(torch.zeros(3, 1), torch.zeros(2, 1), False, "uniform"), pattern, Accuracy())
    assert (found.leak, found.ratio_error, found.zero_ratio, found.reached) == (0, 0, 0, True)


def test_only_the_first_failing_rows_are_named_and_all_are_counted() -> None:
    pattern, head = perfect(64)
    found = certify(dataclasses.replace(head, queries=0 * head.queries), pattern, Accuracy())
    assert (found.failing, found.failing_rows) == (64, tuple(range(certificate.NAMED_ROWS)))
    assert found.leak == pytest.approx(63 / 64)
    assert found.to_json()["reached"] is False


def test_a_head_of_another_size_is_refused() -> None:
    _, head = perfect(6)
    with pytest.raises(RefusalError, match="do not belong together"):
        certify(head, union_of_permutations(7, 1, 0), Accuracy())


SINGLE = UNITS["float32"]


def summed(query: np.ndarray, key: np.ndarray, order: np.ndarray) -> np.float32:
    total = np.float32(0)
    for c in order:
        total = np.float32(total + np.float32(query[c] * key[c]))
    return total


@given(seed=st.integers(0, 10_000), width=st.integers(1, 12), length=st.floats(0, 8))
def test_no_order_of_summation_is_farther_off(seed: int, width: int, length: float) -> None:
    rng = np.random.default_rng(seed)
    queries, keys = (rng.standard_normal((3, width)).astype(np.float32) for _ in range(2))
    queries *= np.float32(10**length)
    scale = width**-0.5
    exact, slack = logits_and_slack(torch.from_numpy(queries), torch.from_numpy(keys), scale, SINGLE)
    for _ in range(5):
        order = rng.permutation(width)
        run = np.array([[np.float32(summed(q, k, order)) for k in keys] for q in queries]).astype(np.float64) * scale
        assert (np.abs(run - exact.numpy()) <= slack.numpy()).all()


def test_whole_numbers_do_not_round_until_their_sums_are_too_long() -> None:
    keys = torch.tensor([[3.0, 5.0, 0.5, 2.0]])  # multiples of 1/2; the scale of width 4 is a power of two
    short, long = torch.tensor([[7.0, -4.0, 2.0, 0.0]]), torch.tensor([[7.0, -4.0, 2.0**26, 0.0]])
    assert logits_and_slack(short, keys, 0.5, SINGLE).slack.item() == 0
    assert logits_and_slack(long, keys, 0.5, SINGLE).slack.item() > 0
    assert logits_and_slack(short, keys, 0.3, SINGLE).slack.item() == pytest.approx(0.3 * SINGLE * 2, rel=1e-5)


@given(st.integers(-(2**24) + 1, 2**24 - 1), st.integers(-40, 40))
def test_the_lowest_bit_divides_and_twice_it_does_not(whole: int, exponent: int) -> None:
    value = math.ldexp(whole, exponent)
    bit = lowest_bit(torch.tensor([value], dtype=torch.float64)).item()
    if whole == 0:
        assert bit == math.inf
    else:
        assert (value / bit).is_integer()
        assert not (value / (2 * bit)).is_integer()


def test_a_column_of_zeros_rounds_nothing() -> None:
    keys = torch.tensor([[4.0, 0.0], [8.0, 0.0]])
    assert step_of(torch.tensor([[2.0, 0.1], [0.0, 0.3]]), keys).tolist() == [8.0, math.inf]


def test_no_head_passes_because_rounded_logits_tie() -> None:
    """Two rows of log weights (4, 0, 0) and (0, 4, 0) have rank two. On these keys of width one float32 products happen
    to be 4 apart and 0 apart, which one evaluation would take for an exact answer."""
    keys = torch.tensor([[2.0**25 - 6], [2.0**25 - 10], [2.0**25 - 8]])
    queries = torch.tensor([[1 + 1025 / 4096], [-1 - 1 / 4096]])
    weights = np.exp([4.0, 0, 0, 0, 4.0, 0])
    pattern = Pattern.of(np.repeat([0, 1], 3), np.tile(np.arange(3), 2), weights, n=2, n_keys=3, normalise=True)
    run = queries @ keys.T
    assert (run[0] - run[0, 2]).tolist() == [4, 0, 0]
    assert (run[1] - run[1, 2]).tolist() == [0, 4, 0]
    assert lower_bounds(pattern, Accuracy()).best.width == 2
    found = certify(Head(queries, keys, False, "luck"), pattern, Accuracy())
    assert found.failing == 2
    assert found.rounding is not None
    assert found.rounding > 1
