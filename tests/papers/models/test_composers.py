"""Models built by hand (arXiv:2602.01763): lookups against tables, memories against loops, 2-Sum against all pairs."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import attnscope
from attnscope.core.errors import RefusalError
from attnscope.matrix.linear_attention import delta_memory, sum_memory
from attnscope.papers.models.composers import composer, digits, hybrid, shortcut, wide, window
from attnscope.papers.models.hand_sheet import Sheet
from attnscope.papers.models.nano import Config, Nano
from attnscope.papers.models.tasks import Composition, composed
from attnscope.papers.models.two_sum import TwoSum, draw_sums, full_two_sum, random_codes, right, seen_by_chance


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_answers_equal_a_loop() -> None:
    asked = Composition(3, 7, 5).draw(4, rng())
    for row in range(4):
        for place in range(5):
            now = int(asked.queries[row, place])
            for fold in range(3):
                now = int(asked.tables[row, fold, now])
                assert now == int(asked.answers[row, place, fold])
    assert torch.equal(composed(asked.tables, asked.queries), asked.answers)


@pytest.mark.parametrize(("folds", "arguments"), [(1, 2), (2, 5), (3, 16), (8, 33)])
def test_as_many_lookups_as_functions_are_exact(folds: int, arguments: int) -> None:
    task = Composition(folds, arguments, 20)
    asked = task.draw(2, rng(1))
    with torch.no_grad():
        said = composer(task)(vectors=task.vectors(asked))[:, -20:]
    assert torch.equal(said.argmax(-1), asked.answers[..., -1])
    # The last register holds the code itself, so the answer's logit is the number of digits.
    wanted = digits(arguments) @ digits(arguments).T
    torch.testing.assert_close(said, wanted[asked.answers[..., -1]], atol=1e-4, rtol=0)


@pytest.mark.parametrize("folds", [1, 2, 4, 8])
def test_looking_ahead_needs_the_logarithm_of_the_number_of_blocks(folds: int) -> None:
    task = Composition(folds, 9, 6)
    asked = task.draw(2, rng(2))
    model = shortcut(task)
    assert len(model.blocks) == folds.bit_length()
    with torch.no_grad():
        assert torch.equal(model(vectors=task.vectors(asked))[:, -6:].argmax(-1), asked.answers[..., -1])


def test_lookups_that_are_missing_leave_an_earlier_answer() -> None:
    task = Composition(3, 12, 10)
    asked = task.draw(2, rng(3))
    with torch.no_grad():
        said = composer(task, lookups=2)(vectors=task.vectors(asked))[:, -10:].argmax(-1)
    assert torch.equal(said, asked.answers[..., 1])


def test_attention_of_a_lookup_can_be_scanned() -> None:
    """There is one block and one head for each function."""
    task = Composition(2, 8, 16)
    asked = task.draw(1, rng(4))
    survey = attnscope.scan(composer(task), [{"vectors": task.vectors(asked)}], measures=("entropy",))
    assert survey.values("entropy").shape == (2, 1)
    assert survey.provenance["corpus"]["tokens"] == 32  # 16 entries and 16 queries, given as vectors
    # In block 2 only the 16 queries look something up, with entropy 0. The 16 entries see at most 16 tokens, so the
    # mean over the 32 tokens is at most half of ln 16.
    assert float(survey.values("entropy")[1, 0]) <= 0.5 * math.log(16) + 1e-4


def test_memories_equal_their_loops() -> None:
    query, key, value = (torch.randn(2, 9, 4, generator=rng(seed), dtype=torch.float64) for seed in range(3))
    key = F.normalize(key, dim=-1)
    key[:, 3] *= 0.5
    key[:, 5] = 0.0
    past = torch.ones(9, 9, dtype=torch.bool).tril()
    total, replaced = torch.zeros(2, 4, 4, dtype=torch.float64), torch.zeros(2, 4, 4, dtype=torch.float64)
    sums, deltas = [], []
    for token in range(9):
        k, v = key[:, token, :, None], value[:, token, :, None]
        total = total + v @ k.mT
        replaced = replaced + (v - replaced @ k) @ k.mT
        sums.append((total @ query[:, token, :, None])[..., 0])
        deltas.append((replaced @ query[:, token, :, None])[..., 0])
    # Nine steps of products of numbers near 1, in float64.
    torch.testing.assert_close(sum_memory(query, key, value, past), torch.stack(sums, 1), atol=1e-12, rtol=0)
    torch.testing.assert_close(delta_memory(query, key, value, past), torch.stack(deltas, 1), atol=1e-12, rtol=0)


def test_window_limits_visible_tokens() -> None:
    query, key, value = (torch.randn(1, 1, 6, 3, generator=rng(seed)) for seed in range(3))
    past = torch.ones(6, 6, dtype=torch.bool).tril()[None, None]
    said = window(1)(query, key, value, past, 1.0)
    torch.testing.assert_close(said, value)
    wide_enough = window(6)(query, key, value, past, 1.0)
    torch.testing.assert_close(wide_enough, F.scaled_dot_product_attention(query, key, value, past, scale=1.0))


def test_impossible_models_are_refused() -> None:
    task = Composition(3, 4)
    with pytest.raises(RefusalError, match="power of 2"):
        shortcut(task)
    with pytest.raises(RefusalError, match="1 to 3 lookups"):
        composer(task, lookups=4)
    with pytest.raises(RefusalError, match="4 keys and 3 kinds"):
        wide(task, torch.eye(4), ("full",))
    with pytest.raises(RefusalError, match="2 symbols"):
        Composition(1, 1)
    model = Nano(Config(width=4, heads=1, layers=1, inputs=2, out=2, causal=True))
    with pytest.raises(RefusalError, match="no kind of block called"):
        hybrid(model, ("quick",))
    with pytest.raises(RefusalError, match="one kind per block"):
        hybrid(model, ("full", "full"))
    with pytest.raises(RefusalError, match="causal=True"):
        hybrid(Nano(Config(width=4, heads=1, layers=1, inputs=2, out=2)), ("delta",))


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
    """Wide codes find every partner; useless codes find a block as often as chance."""
    assert seen_by_chance(100_000, 8, 1, 512) == pytest.approx(1.0, abs=1e-9)
    assert seen_by_chance(1, 1000, 2, 8000) == pytest.approx(2 / 8, abs=0.02)  # a signal of 1 in noise of 32
    assert seen_by_chance(16, 8, 64, 512) == pytest.approx(1.0, abs=1e-9)


def test_it_can_be_scanned() -> None:
    sums = draw_sums(2, 16, 129, rng(4))
    survey = attnscope.scan(full_two_sum(129), [{"input_ids": sums.ids}], measures=("entropy",))
    assert float(survey.values("entropy")[0, 0]) < 1e-3  # every token attends to a single key


def test_impossible_two_sums_are_refused() -> None:
    with pytest.raises(RefusalError, match="odd modulus"):
        draw_sums(1, 16, 128, rng())
    with pytest.raises(RefusalError, match="together or neither"):
        TwoSum(torch.eye(5), 0.5, 1.0, block=2)
    with pytest.raises(RefusalError, match="blocks of 3"):
        TwoSum(random_codes(65, 4, rng()), 0.5, 1.0, 3, 1)(torch.arange(1, 9)[None])


def test_a_staircase_looks_up_and_removes_small_errors() -> None:
    nodes, values = torch.tensor([-1.0, 0.0, 0.5, 3.0]), torch.tensor([[2.0], [-1.0], [4.0], [0.0]])
    for off in (-0.2, 0.0, 0.2):
        sheet = Sheet({"x": 1, "y": 1}, 4, 1, 1, [1], 6, 5)
        steps = torch.tensor([1.0, 0.5, 0.5, 2.5])  # the smaller neighbouring step of each node
        sheet.embed("x", (nodes + off * steps)[:, None])
        sheet.staircase(0, {"x": 1.0}, nodes, {"y": values})
        sheet.model.output.weight.data[0, sheet.at["y"]] = 1.0
        with torch.no_grad():
            said = sheet.model(input_ids=torch.arange(4)[:, None])[:, 0, 0]
        torch.testing.assert_close(said, values[:, 0], atol=1e-5, rtol=0)


def test_nearest_number_is_the_answer() -> None:
    sheet = Sheet({"y": 1}, 5, 1, 1, [1], 1, 4)
    sheet.embed("y", torch.tensor([[0.4], [0.6], [1.9], [2.6], [9.0]]))
    with torch.no_grad():
        said = sheet.answering("y", 4)(input_ids=torch.arange(5)[:, None]).argmax(-1)[:, 0]
    assert said.tolist() == [0, 1, 2, 3, 3]
