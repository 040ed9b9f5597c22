"""Farthest points: by hand, and a layer of heads against plain loops."""

from __future__ import annotations

import pytest
import torch

import attnscope
from attnscope.core.errors import RefusalError
from attnscope.papers.trials.rank_one_heads import FarthestPoint, RankHeads, farthest, unit_vectors


def test_the_farthest_point_is_found_by_looking_at_all() -> None:
    x = unit_vectors(3, 7, 4, torch.Generator().manual_seed(0))
    for points, found in zip(x, farthest(x), strict=True):
        for point, answer in zip(points, found, strict=True):
            assert float((points - point).norm(dim=-1).max()) == pytest.approx(float((answer - point).norm()), abs=1e-6)


def test_one_head_of_full_rank_is_as_near_as_its_bound() -> None:
    x = unit_vectors(5, 7, 4, torch.Generator().manual_seed(0)).double()
    two = (x @ x.mT).topk(2, largest=False).values
    for beta in (10.0, 100.0, 1000.0):
        bound = 2 * 6 * torch.exp(-beta * (two[..., 1] - two[..., 0]))
        wrong = (FarthestPoint(beta)(x) - farthest(x)).norm(dim=-1)
        assert bool((wrong <= bound + beta * 2.0**-49).all())


def test_heads_equal_loops() -> None:
    model = RankHeads(width=6, heads=3, rank=2, seed=0).double()
    x = unit_vectors(2, 5, 6, torch.Generator().manual_seed(1)).double()
    wanted = torch.zeros_like(x)
    for head in range(3):
        some = slice(2 * head, 2 * head + 2)
        logits = (x @ model.query[some].T) @ (x @ model.key[some].T).mT
        wanted = wanted + logits.softmax(-1) @ x @ model.value[some].T @ model.write[:, some].T
    torch.testing.assert_close(model(x), wanted, atol=1e-13, rtol=0)


def test_it_can_be_scanned_and_nonsense_is_refused() -> None:
    x = unit_vectors(2, 9, 4, torch.Generator().manual_seed(0))
    entropy = [
        float(attnscope.scan(FarthestPoint(beta), [{"vectors": x}], measures="entropy").values("entropy").mean())
        for beta in (1.0, 100.0)
    ]
    assert entropy[1] < entropy[0]
    with pytest.raises(RefusalError, match="over 0"):
        FarthestPoint(0.0)
