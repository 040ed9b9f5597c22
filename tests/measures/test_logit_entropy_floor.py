import math

import torch

from attnscope.matrix.scores import Scores
from attnscope.matrix.statistics import attention_statistics
from attnscope.measures.logit_entropy_floor import logit_entropy_floor


def asked(scores: Scores):
    real = torch.ones(scores.query.shape[0], scores.query.shape[2], dtype=torch.bool)
    found = attention_statistics(scores, ("row_entropy", "row_mass"), query_mask=real, key_mask=real)
    return {part: one.value for part, one in logit_entropy_floor(**found, scores=scores, query_mask=real).items()}


def logits(rows: torch.Tensor, **rule) -> Scores:
    return Scores(rows[None, None], torch.eye(rows.shape[-1], dtype=rows.dtype)[None, None], 1.0, **rule)


def test_by_hand():
    n = 6
    equal = asked(logits(torch.full((n, n), 3.0, dtype=torch.float64)))
    torch.testing.assert_close(equal["floor"].item(), math.log(n))
    assert equal["above"].item() < 1e-9
    high = asked(logits(4.0 * torch.eye(n, dtype=torch.float64)))  # one high logit a row attains it
    assert 0 < high["floor"].item() < math.log(n)
    assert high["above"].item() < 1e-9
    two = torch.zeros(n, n, dtype=torch.float64)
    two[:, :2] = 4.0  # two high logits do not
    assert asked(logits(two))["above"].item() > 0.3


def test_floor_and_above_add_up_to_the_entropy_with_sinks_and_masks():
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(2, 3, 20, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    scores = Scores(query, key, 1.5, causal=True)
    plain = asked(scores)
    real = torch.ones(2, 20, dtype=torch.bool)
    entropy = attention_statistics(scores, ("row_entropy",), query_mask=real, key_mask=real)["row_entropy"].mean(-1)
    torch.testing.assert_close(plain["floor"] + plain["above"], entropy)
    sunk = asked(Scores(query, key, 1.5, causal=True, sinks=torch.full((3,), 2.0)))
    for part, value in plain.items():
        torch.testing.assert_close(sunk[part], value, msg=part)
