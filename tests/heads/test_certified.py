"""Rounding and certifying in one step: the same head and the same certificate as in two."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnscope.heads.accuracy import DTYPES, Accuracy, Dtype, Factors
from attnscope.heads.certificate import certify
from attnscope.heads.generate import union_of_permutations
from attnscope.heads.rounding import certified, rounded


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_certificate_is_of_the_rounded_head(dtype: Dtype) -> None:
    pattern, accuracy = union_of_permutations(12, 2, 0), Accuracy(dtype=dtype)
    queries = np.zeros((12, 12))
    queries[pattern.rows, pattern.columns] = 12.0
    factors = Factors(queries, np.eye(12), {"draws": 3})
    head, certificate = certified(factors, pattern, accuracy, "basis")
    expected = rounded(factors, pattern, dtype, "basis")
    assert torch.equal(head.queries, expected.queries)
    assert torch.equal(head.keys, expected.keys)
    assert (head.method, head.dtype, head.notes) == ("basis", dtype, {"draws": 3})
    assert certificate == certify(expected, pattern, accuracy)
    assert certificate.reached
