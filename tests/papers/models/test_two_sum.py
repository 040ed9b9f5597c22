"""2-Sum by one head (arXiv:2602.01763), against looking at all pairs."""

from __future__ import annotations

import pytest
import torch

import attnscope
from attnscope.core.errors import RefusalError
from attnscope.papers.models.two_sum import TwoSum, draw_sums, full_two_sum, random_codes, right, seen_by_chance


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_partners_are_those_of_all_pairs() -> None:
    sums = draw_sums(3, 20, 201, rng())
    opposite = (sums.ids[:, :, None] + sums.ids[:, None]) % 201 == 0
    assert torch.equal(opposite.any(-1), sums.partners > 0)
    assert torch.equal(opposite.sum(-1), (sums.partners > 0).long())
    assert int((sums.partners > 0).sum()) == 30  # half of the tokens
    assert torch.equal((opposite * sums.ids[:, None]).sum(-1), sums.partners)


@pytest.mark.parametrize("tokens", [4, 37, 256])
def test_full_attention_is_exact(tokens: int) -> None:
    model = full_two_sum(8 * tokens + 1)
    sums = draw_sums(2, tokens, 8 * tokens + 1, rng(1))
    answer = model(sums.ids)
    assert right(answer, sums) == (1.0, 1.0)
    torch.testing.assert_close(answer[..., 0], (sums.partners > 0).float(), atol=1e-4, rtol=0)


def test_all_blocks_kept_is_full_attention() -> None:
    codes = random_codes(65, 16, rng(2))
    sums = draw_sums(2, 8, 65, rng(3))
    sparse, full = TwoSum(codes, 0.9, 50.0, block=2, kept=4), TwoSum(codes, 0.9, 50.0)
    torch.testing.assert_close(sparse(sums.ids), full(sums.ids))


def test_the_gaussian_count_has_the_ends_that_it_must_have() -> None:
    """Wide codes find all; codes of no use find a block as often as it is among those kept."""
    assert seen_by_chance(100_000, 8, 1, 512) == pytest.approx(1.0, abs=1e-9)
    assert seen_by_chance(1, 1000, 2, 8000) == pytest.approx(2 / 8, abs=0.02)  # 1 beside noise of 32
    assert seen_by_chance(16, 8, 64, 512) == pytest.approx(1.0, abs=1e-9)


def test_it_can_be_scanned() -> None:
    sums = draw_sums(2, 16, 129, rng(4))
    survey = attnscope.scan(full_two_sum(129), [{"input_ids": sums.ids}], measures=("entropy",))
    assert float(survey.values("entropy")[0, 0]) < 1e-3  # every token has one place to look at


def test_impossible_two_sums_are_refused() -> None:
    with pytest.raises(RefusalError, match="odd modulus"):
        draw_sums(1, 16, 128, rng())
    with pytest.raises(RefusalError, match="together or neither"):
        TwoSum(torch.eye(5), 0.5, 1.0, block=2)
    with pytest.raises(RefusalError, match="blocks of 3"):
        TwoSum(random_codes(65, 4, rng()), 0.5, 1.0, 3, 1)(torch.arange(1, 9)[None])
