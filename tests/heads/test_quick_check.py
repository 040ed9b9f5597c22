"""The quick check is never kinder than the certificate."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnscope.heads.accuracy import Accuracy, Dtype, Factors
from attnscope.heads.certificate import certified_rows, certify
from attnscope.heads.generate import sink_window, union_of_permutations, window
from attnscope.heads.head import Head, Rows
from attnscope.heads.pattern import Pattern
from attnscope.heads.rounding import rounded, surely_certified
from attnscope.heads.solvers.keys import torus

PATTERNS = (
    union_of_permutations(64, 3, seed=0),
    window(64, 4, causal=True),
    sink_window(64, 4, causal=True),
    union_of_permutations(64, 1, seed=1),
)


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("width", [16, 21])
def test_what_passes_is_certified(pattern: Pattern, dtype: Dtype, width: int) -> None:
    accuracy, rows = Accuracy(dtype=dtype), Rows.of([pattern])
    keys = torus(64, width, np.random.default_rng(0))
    support, weights, real = pattern.padded()
    passed = total = 0
    for length in (2.0, 20.0, 60.0, 1e4, 1e6):  # from leaking over good to spoiled by rounding
        pull = np.einsum("rk,rkd->rd", real * (1 + np.log(weights) / length), keys[support])
        head = rounded(Factors(length * pull, keys), pattern, dtype, "here")
        quick, whole = (
            surely_certified(head.queries, head.keys, rows, accuracy),
            certified_rows(head, pattern, accuracy),
        )
        assert not (quick & ~whole).any()
        assert int((~whole).sum()) == certify(head, pattern, accuracy).failing
        passed, total = passed + int(quick.sum()), total + int(whole.sum())
    assert passed >= 0.5 * total > 0


def test_what_is_no_number_never_passes() -> None:
    pattern, keys = union_of_permutations(8, 1, seed=0), torch.eye(8)
    queries = torch.full((8, 8), torch.nan)
    assert not surely_certified(queries, keys, Rows.of([pattern]), Accuracy()).any()
    assert not certified_rows(Head(queries, keys, False, "here"), pattern, Accuracy()).any()
