import math

import pytest
import torch

from attnscope.matrix.scores import Scores
from attnscope.matrix.statistics import attention_statistics
from attnscope.measures.logit_phase import logit_phase


def asked(rows: torch.Tensor, **rule):
    scores = Scores(rows[None, None], torch.eye(rows.shape[-1], dtype=rows.dtype)[None, None], 1.0, **rule)
    real = torch.ones(1, len(rows), dtype=torch.bool)
    keys = torch.ones(1, rows.shape[-1], dtype=torch.bool)
    found = attention_statistics(scores, ("row_sum_squares", "row_entropy"), query_mask=real, key_mask=keys)
    entropy = found.pop("row_entropy").mean().item()
    parts = logit_phase(**found, scores=scores, query_mask=real)
    return {part: one.value.item() for part, one in parts.items()}, entropy


def gaussian(r: float, n: int = 1024, rows: int = 64) -> torch.Tensor:
    noise = torch.randn(rows, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return r * math.sqrt(2 * math.log(n)) * noise


def test_by_hand():
    parts, entropy = asked(torch.zeros(4, 8, dtype=torch.float64))
    assert parts == pytest.approx(
        {"value": 0, "spread": 0, "predicted_entropy": math.log(8), "predicted_squares": 0, "squares": 1 / 8}
    )
    assert entropy == pytest.approx(math.log(8))
    alone, _ = asked(torch.zeros(1, 8, dtype=torch.float64), causal=True)  # sees one key
    assert alone == {"value": 0, "spread": 0, "predicted_entropy": 0, "predicted_squares": 1, "squares": 1}


@pytest.mark.parametrize(("r", "share"), [(0.3, 0.91), (0.5, 0.755)])
def test_gaussian_logits_well_below_one(r, share):
    """Entropy is (1 - r^2) ln n in the limit; .910 and .755 were measured elsewhere at n = 1024."""
    parts, entropy = asked(gaussian(r))
    assert parts["value"] == pytest.approx(r, rel=0.02)
    assert parts["predicted_entropy"] / math.log(1024) == pytest.approx(1 - r * r, abs=0.01)
    # The entropy deviates by less than .3 nats between rows. Over 64 rows that is .3/8/ln 1024 = .006; allow twice
    # that.
    assert entropy / math.log(1024) == pytest.approx(share, abs=0.012)


def test_frozen_logits():
    """Sum of squares 1 - 1/r in the limit; .639 was measured elsewhere at n = 1024 and r = 2.5."""
    parts, _ = asked(gaussian(2.5, rows=400))
    assert parts["predicted_squares"] == pytest.approx(0.6, abs=0.01)
    # The sum of squares of a row deviates by about .25. Over 400 rows that is .25/20; allow three times that.
    assert parts["squares"] == pytest.approx(0.639, abs=0.04)
