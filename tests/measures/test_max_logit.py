from dataclasses import replace

import pytest
import torch

from attnscope.matrix.logits import largest_product
from attnscope.matrix.scores import Scores
from attnscope.matrix.statistics import attention_statistics
from attnscope.measures.max_logit import max_logit

READS = ("row_top_logit", "row_mass")


def asked(scores: Scores, query_mask: torch.Tensor | None = None, **more):
    """Return the measure of these logits, computed as in a scan."""
    batch, _, rows, _ = scores.query.shape
    real = torch.ones(batch, rows, dtype=torch.bool) if query_mask is None else query_mask
    keys = torch.ones(batch, scores.key.shape[2], dtype=torch.bool)
    found = attention_statistics(scores, READS, query_mask=real, key_mask=keys, **more)
    return max_logit(**found, query_mask=real)["value"]


def logits(*rows: list[float], **rule) -> Scores:
    """Return scores with these logits: queries are their rows, keys are the identity."""
    query = torch.tensor([[rows]])
    return Scores(query, torch.eye(query.shape[-1])[None, None], 1.0, **rule)


def test_by_hand():
    scores = logits([1.0, 9.0, 2.0], [-5.0, 3.0, 0.5], [0.0, 4.0, 7.0])
    found = asked(scores)
    assert (found.value.item(), found.where["token"].item()) == (9.0, 0)
    hidden = asked(replace(scores, causal=True))  # 9 and 2 lie in the future
    assert (hidden.value.item(), hidden.where["token"].item()) == (7.0, 2)
    capped = asked(replace(scores, softcap=4.0))
    assert capped.value.item() == pytest.approx(4 * torch.tanh(torch.tensor(9 / 4)).item())
    assert asked(replace(scores, sinks=torch.tensor([50.0]))).value.item() == pytest.approx(9.0, abs=1e-5)
    bias = torch.zeros(1, 1, 3, 3)
    bias[..., 0, 1] = -torch.inf
    bias[..., 2, 0] = 20.0
    assert asked(replace(scores, bias=bias)).value.item() == 20.0
    only = torch.tensor([[False, True, False]])
    assert asked(scores, only).value.item() == 3.0
    assert asked(scores, only).where["token"].item() == 0, "counted from the first real token"


def test_a_head_whose_logits_are_all_negative():
    scores = logits([-3.0, -2.0], [-9.0, -4.0])
    assert asked(scores).value.item() == -2.0
    blind = replace(scores, allowed=torch.tensor([[[[False, False], [True, True]]]]))
    assert asked(blind).value.item() == -4.0, "a row that sees nothing has no logit"


@pytest.mark.parametrize("length", [30, 1500])
def test_equals_the_largest_product_that_qk_clip_uses(length):
    """If logits are plain products, `largest_product` gives the same number."""
    torch.manual_seed(0)
    scores = Scores(torch.randn(2, 4, length, 8), torch.randn(2, 2, length, 8), 3.0, causal=True)
    real = torch.ones(2, length, dtype=torch.bool)
    real[1, length - 7 :] = False
    found = asked(scores, real, accumulate=torch.float32).value.amax(0)
    torch.testing.assert_close(found, largest_product(scores, real), rtol=1e-5, atol=0)


def test_a_wrong_log_sum_exp_does_not_matter():
    scores = logits([1.0, 9.0, 2.0], [-5.0, 3.0, 0.5])
    wrong = replace(scores, lse=torch.full((1, 1, 2), 8.5))
    assert asked(wrong, accumulate=torch.float32).value.item() == pytest.approx(9.0, abs=1e-5)


def test_a_precomputed_pattern_has_no_logit(pattern_scores, uniform):
    real = torch.ones(1, 8, dtype=torch.bool)
    for route in ("blocked", "dense"):
        found = attention_statistics(pattern_scores(uniform), READS, query_mask=real, key_mask=real, route=route)
        assert set(found) == {"row_mass"}
