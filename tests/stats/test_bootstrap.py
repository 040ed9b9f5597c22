"""Intervals have their stated coverage: for one mean, for means by document, and for all differences together."""

from __future__ import annotations

import numpy as np
import pytest

from attnscope.stats.intervals import bootstrap_mean, simultaneous_differences


def test_the_bootstrap_holds_the_mean_of_normal_numbers() -> None:
    """Of 200 samples of 40, the true mean is inside about 95 times in 100: 190 +- 3, and 175 is five of these below."""
    rng = np.random.default_rng(0)
    inside = 0
    for seed in range(200):
        _, low, high = bootstrap_mean(rng.normal(1.0, 2.0, 40).tolist(), seed)
        inside += low <= 1.0 <= high
    assert 175 <= inside < 200
    assert bootstrap_mean([3.0]) == (3.0, 3.0, 3.0)
    assert bootstrap_mean([1.0, 2.0, 6.0]) == bootstrap_mean([1.0, 2.0, 6.0])


def test_texts_of_one_document_are_drawn_together() -> None:
    """Four equal texts of each of 12 documents tell no more than 12 texts: the interval is theirs, and twice as wide as
    that of 48 texts that stand alone (the square root of 4, to the noise of 2000 draws)."""
    values = np.random.default_rng(1).normal(0, 1, 12)
    copied, documents = np.repeat(values, 4).tolist(), np.repeat(np.arange(12), 4).tolist()
    together = bootstrap_mean(copied, groups=documents)
    assert together == pytest.approx(bootstrap_mean(values.tolist()))
    _, low, high = bootstrap_mean(copied)
    assert (together[2] - together[1]) / (high - low) == pytest.approx(2, rel=0.15)


@pytest.mark.parametrize("kind", ["normal", "skewed", "documents"])
def test_of_methods_that_are_equal_no_two_differ(kind: str) -> None:
    """36 differences that are all chance: in at most 5 of 100 experiments is any of them called real. Of 120
    experiments that is 6 +- 2.4, and 18 is five of these above."""
    rng = np.random.default_rng(2)
    wrong = 0
    documents = np.repeat(np.arange(12), 3)
    for seed in range(120):
        hard = rng.normal(0, 1, 16)
        values = {
            "normal": lambda: hard + rng.normal(0, 0.5, (9, 16)),  # noqa: B023
            "skewed": lambda: hard + rng.exponential(0.5, (9, 16)),  # noqa: B023
            "documents": lambda: rng.normal(0, 1, (9, 12))[:, documents] + rng.normal(0, 0.1, (9, 36)),
        }[kind]()
        groups = documents.tolist() if kind == "documents" else None
        apart, off = simultaneous_differences(values.tolist(), seed, groups)
        wrong += bool((np.abs(apart) > off).any())
    assert wrong <= 18


def test_a_real_difference_is_found() -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(0, 1, 12) + rng.normal(0, 0.2, (4, 12))
    values[0] += 1
    apart, off = simultaneous_differences(values.tolist())
    assert (np.abs(apart) > off)[0].tolist() == [False, True, True, True]
    assert not (np.abs(apart) > off)[1:, 1:].any()
    assert apart[0, 1] == pytest.approx(float((values[0] - values[1]).mean()))
    assert np.allclose(apart, -apart.T)


def test_few_texts_prove_nothing_and_equal_rows_do_not_differ() -> None:
    far = [[float(n) for n in range(5)], [10.0 + n for n in range(5)]]
    assert np.isinf(simultaneous_differences(far)[1]).all()
    assert np.isinf(simultaneous_differences([[1.0], [2.0]])[1]).all()
    row = [float(n) for n in range(8)]
    apart, off = simultaneous_differences([row, row, [n + 1 for n in row]])
    assert (np.abs(apart) > off).tolist() == [[False, False, True], [False, False, True], [True, True, False]]


def test_documents_of_unequal_size_have_the_error_of_paired_intervals() -> None:
    """A large document is expected to have a large sum. The error is that of Liang and Zeger, written out; and with all
    differences equal there is none, whatever the sizes."""
    rng = np.random.default_rng(4)
    documents = np.repeat(np.arange(8), [1, 2, 9, 1, 4, 1, 6, 3])
    d = 1 + rng.normal(0, 0.3, len(documents))
    hard = rng.normal(0, 1, len(documents))
    apart, off = simultaneous_differences([(hard + d).tolist(), hard.tolist()], groups=documents.tolist())
    rest = [float((d - d.mean())[documents == k].sum()) for k in range(8)]
    error = (8 / 7 * sum(r * r for r in rest)) ** 0.5 / len(d)
    assert apart[0, 1] == pytest.approx(float(d.mean()))
    patterns = np.array([[1 - 2 * (k >> bit & 1) for bit in range(8)] for k in range(256)])
    largest = []
    for signs in patterns:  # every draw, text by text
        turned = signs[documents] * d
        left = [float((turned - turned.mean())[documents == k].sum()) for k in range(8)]
        largest.append(abs(turned.mean()) * len(d) / (8 / 7 * sum(r * r for r in left)) ** 0.5)
    assert off[0, 1] / error == pytest.approx(np.sort(largest)[int(np.ceil(0.95 * 127)) * 2])
    _, none = simultaneous_differences([[1.0] * 27, [0.0] * 27], groups=documents.tolist())
    assert none[0, 1] == pytest.approx(0, abs=1e-7)
