"""`fast2024`, small enough to run in every test; counted costs of factorised attention, and bounds on its kernels."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from attnscope.core.experiment import UnsavedSession
from attnscope.papers.experiments.fast2024 import fast2024
from attnscope.papers.trials.factorised_cost import (
    KINDS,
    expected_negative_share,
    heads,
    largest_error,
    least_kernel,
    needle_weight,
    negative_share,
    operations,
)
from attnscope.papers.trials.trained_alike import TASKS, Shape, Training
from attnscope.variants.fastmax2 import standard

TINY = replace(
    fast2024.presets["quick"],
    exact_tokens=12,
    kernel_tokens=32,
    dim=4,
    lengths=(64, 128),
    needle_lengths=(8, 16),
    shape=Shape(layers=1, width=8, data=(12, 4)),
    training=Training(steps=2, batch=4),
)


def test_every_kind_is_timed_counted_and_trained() -> None:
    found = fast2024.run(TINY, (0,), UnsavedSession())
    by_name = {figure.name: figure for figure in found.figures}
    for name in ("time", "operations", "accuracy", "needle"):
        assert {row.series for row in by_name[name].rows} == set(KINDS)
    assert {row.x for row in by_name["accuracy"].rows} == set(TASKS)


def test_operations_by_hand() -> None:
    """Softmax: two products of n x n x d. Order 1, all keys: d + 1 features times d + 1 columns, to sum and to read."""
    n, d = 128, 8
    assert operations("softmax", n, d, False) == 2 * (2 * n * n * d)
    assert operations("fastmax1", n, d, False) == 2 * (2 * n * (d + 1) * (d + 1))


def test_operations_of_order_2_are_proportional_to_the_length() -> None:
    for causal in (False, True):
        few, many = (operations("fastmax2", n, 8, causal) for n in (256, 1024))
        assert many == pytest.approx(4 * few, rel=0.05)  # the first chunk of a causal call has nothing before it


@pytest.mark.parametrize("kind", ["fastmax1", "fastmax2"])
def test_factorised_form_is_exact_to_rounding(kind: str) -> None:
    """Rounding is at most the number of added terms, 16 x 153 features, times 2^-53."""
    assert largest_error(kind, 16, 16, True, 0) < 16 * 153 * 2**-53
    assert largest_error("softmax", 16, 16, False, 0) < 1e-14


def test_negative_weights_are_as_many_as_derived() -> None:
    """A share of 128^2 pairs; pairs of one query are not independent, so 128 counts: sqrt(.25/128) = .044, 3 of it."""
    raw, bounded = negative_share(128, 20, 0)
    assert raw == pytest.approx(expected_negative_share(20), abs=0.13)
    assert bounded == 0


def test_the_least_kernel_is_that_of_the_polynomial() -> None:
    """Read from the factorised form's weights, and from its polynomial; x goes to 100 here and x^2/2 to 5000, so that
    rounding is 5000 x 231 features x 2^-53."""
    inputs = heads(24, 20, 0)
    query, key = inputs.query, inputs.key
    key[..., 0, :] = 0.0
    for scale in (0.2, 10.0):
        x = scale * standard(query) @ standard(key).mT
        slow = float((1 + x + x.square() / 2).min())
        assert least_kernel("fastmax2", 24, 20, 0, (scale,)) == pytest.approx(slow, abs=1.3e-10)
    # softmax serves as a wrong form: e^x comes near 0, so the claim must fail for it
    assert least_kernel("softmax", 24, 20, 0) < 0.1


def test_needle_weight_matches_the_derivation() -> None:
    """E f over 255 others has a relative error of some 10% for one needle, and little over the mean of 256."""
    f = 1 + math.sqrt(32) + 16
    assert needle_weight("fastmax2", 256, 32, 0) == pytest.approx(f / (f + 255 * 1.5), rel=0.1)
