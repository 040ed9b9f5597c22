import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

import attnscope
from attnscope.data.sequences import repeated_windows
from attnscope.heads.head import Head
from attnscope.matrix.dense import dense_pattern
from attnscope.matrix.scores import Scores
from attnscope.measures.induction import induction
from attnscope.papers.models.nano import Config, Nano

TWICE = torch.tensor([[3, 1, 4, 5, 3, 1, 4, 5]])


def asked(scores: Scores, tokens: Tensor, real: Tensor | None = None):
    mask = torch.ones(tokens.shape, dtype=torch.bool) if real is None else real
    return induction(scores=scores, tokens=tokens, query_mask=mask, key_mask=mask)["value"]


def obvious(pattern: Tensor, tokens: Tensor, real: Tensor) -> Tensor:
    """Compute the measure row by row from the dense pattern."""
    found = []
    for A, ids, live in zip(pattern, tokens.tolist(), real.tolist(), strict=True):
        masses = []
        for i in range(len(ids)):
            before = [p for p in range(i) if ids[p] == ids[i] and live[p] and live[i]]
            if before and before[-1] + 1 < i:
                masses.append(A[:, i, before[-1] + 1])
        found.append(torch.stack(masses).mean(0) if masses else torch.zeros(A.shape[0], dtype=A.dtype))
    return torch.stack(found)


def test_by_hand(pattern_scores, uniform_causal, identity, first_column):
    # The second half looks at places 1, 2, 3, 4 from 4, 5, 6, 7.
    pattern = torch.zeros(1, 1, 8, 8, dtype=torch.float64)
    pattern[..., torch.arange(4), 0] = 1.0
    pattern[..., torch.arange(4, 8), torch.arange(1, 5)] = 0.75
    assert asked(pattern_scores(pattern), TWICE).value.item() == pytest.approx(0.75)
    for other, mass in ((uniform_causal, (1 / 5 + 1 / 6 + 1 / 7 + 1 / 8) / 4), (identity, 0.0), (first_column, 0.0)):
        assert asked(pattern_scores(other), TWICE).value.item() == pytest.approx(mass)


def test_only_rows_with_something_between_count(pattern_scores, identity):
    """If a token occurs twice in a row, the token after its last occurrence is that token itself."""
    stuttering = torch.tensor([[1, 1, 1, 1, 2, 2, 3, 1]])  # of the last row the place is 4
    pattern = identity.clone()
    pattern[..., 7, :] = 0.0
    pattern[..., 7, 4] = 1.0
    found = asked(pattern_scores(pattern), stuttering)
    assert (found.value.item(), found.counted.tolist()) == (1.0, [True])


def test_a_sequence_that_repeats_nothing_has_no_value(pattern_scores, uniform_causal):
    tokens = torch.cat([TWICE, torch.arange(8)[None]])
    found = asked(pattern_scores(uniform_causal.expand(2, -1, -1, -1)), tokens)
    assert found.counted.tolist() == [True, False]
    assert found.value[1].item() == 0.0


@pytest.mark.parametrize(
    "rule",
    [
        {"causal": True},
        {},
        {"causal": True, "window": 9},
        {"causal": True, "softcap": 2.0},
        {"causal": True, "sinks": torch.tensor([-1.0, 0.0, 2.0, 6.0])},
        {"bias": torch.randn(1, 4, 30, 30, generator=torch.Generator().manual_seed(1))},
    ],
    ids=["causal", "bidirectional", "window", "softcap", "sinks", "bias"],
)
@pytest.mark.parametrize("padding", ["none", "left", "right"])
def test_equals_the_value_from_the_dense_pattern(rule, padding):
    generator = torch.Generator().manual_seed(0)
    query, key = (2 * torch.randn(3, heads, 30, 6, generator=generator) for heads in (4, 2))
    tokens = torch.randint(0, 7, (3, 30), generator=generator)
    real = torch.ones(3, 30, dtype=torch.bool)
    if padding != "none":
        real[1, slice(0, 8) if padding == "left" else slice(22, 30)] = False
    scores = Scores(query, key, 0.7, allowed=real[:, None, None, :], **rule)
    found = asked(scores, tokens, real).value
    # A logit of 6 terms, at most 40 here, has a relative error of sqrt(7) 40 2^-24 = 6e-6 in float32.
    torch.testing.assert_close(found.double(), obvious(dense_pattern(scores), tokens, real), rtol=2e-5, atol=1e-7)
    given = replace(scores, pattern=dense_pattern(scores))
    torch.testing.assert_close(asked(given, tokens, real).value.double(), found.double(), rtol=2e-5, atol=1e-7)


def planted_head(half: int, sharpness: float) -> Head:
    """Return a head with keys on a circle: queries of the second half point at the key after the same token, others at
    the first key.

    Made for [BOS] + random tokens + the same again: row i of the second half has its target at i - half + 1.
    """
    n = 1 + 2 * half
    places = torch.arange(n)
    target = torch.where(places > half, places - half + 1, 0)
    angle = 2 * torch.pi * places / n
    keys = torch.stack([angle.cos(), angle.sin()], -1)
    return Head(sharpness * keys[target], keys, True, "induction by hand")


def circuit(vocabulary: int, places: int, gain: float) -> Nano:
    """Return two hand-made blocks that compare tokens: the first copies the previous token to each token, the second
    attends to tokens whose previous token is the query's. Channels: token, place, token before."""
    config = Config(
        width=2 * vocabulary + places,
        heads=1,
        head_width=max(vocabulary, places),
        layers=2,
        vocab_size=vocabulary,
        norm="none",
        max_tokens=places,
        causal=True,
    )
    model: Any = Nano(config)
    token, place, before = torch.eye(config.width).split((vocabulary, places, vocabulary))
    first, second = (block.attention for block in model.blocks)
    sharp = gain / first.scale
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.embedding.weight.copy_(token)
        model.positions.weight.copy_(place)
        first.query.weight[: places - 1] = sharp * place[1:]  # the place before
        first.key.weight[:places] = place
        first.value.weight[:vocabulary] = token
        first.output.weight[:, :vocabulary] = before.T
        second.query.weight[:vocabulary] = sharp * token
        second.key.weight[:vocabulary] = before
    return model


def test_a_circuit_that_compares_tokens_is_found_at_any_distance():
    """Parts of a text are repeated in another order and at other distances, so a fixed offset does not find them."""
    gain = 12.0
    once = torch.arange(1, 13)
    ids = torch.cat([torch.zeros(1, dtype=torch.long), once, once[8:], once[:3], once[3:8]])[None]
    survey = attnscope.scan(circuit(13, 25, gain), [{"input_ids": ids}], measures="induction")
    # Of the last row's token of each part what followed is another part's first: rows 13 to 24 all count.
    expected = sum(math.exp(gain) / (math.exp(gain) + row) for row in range(13, 25)) / 12
    values = survey.values("induction")
    assert values[1, 0] == pytest.approx(expected, abs=1e-5)
    # The first block attends one token back; repeated parts are at least four tokens away.
    assert values[0, 0] < 0.01
    by_place = planted_head(12, 300.0).attention()
    fixed = induction(
        scores=Scores(torch.zeros(1, 1, 25, 1), torch.zeros(1, 1, 25, 1), 1.0, pattern=by_place[None, None]),
        tokens=ids,
        query_mask=torch.ones(1, 25, dtype=torch.bool),
        key_mask=torch.ones(1, 25, dtype=torch.bool),
    )["value"]
    assert fixed.value.item() < 0.5


def test_a_planted_head_is_found_and_reported():
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=97, n_positions=33, n_embd=32, n_layer=2, n_head=4)
    model = GPT2LMHeadModel(config).eval()
    windows = repeated_windows(range(1, 97), max_tokens=33, samples=3, seed=1, first=0)
    ids = torch.tensor([window.ids for window in windows.sequences])
    assert ids.shape == (3, 33)
    head = planted_head(16, 300.0)
    with attnscope.planted(model, head, 1, 2):
        survey = attnscope.scan(model, [{"input_ids": ids}], measures="induction")
    A = head.attention().double()
    rows = torch.arange(17, 32)  # the last row's place is behind the last token of the first half: the second begins
    expected = torch.cat([A[rows, rows - 15], A[32, 17][None]]).mean()
    values = survey.values("induction")
    assert values[1, 2] == pytest.approx(expected.item(), abs=1e-5)
    assert values[1, 2] > 0.9
    values[1, 2] = 0.0
    assert values.max() < 0.2, "random heads do not"
    (finding,) = [each for each in attnscope.diagnose(survey) if each.kind == "induction_heads"]
    assert (finding.kind, finding.severity, finding.heads) == ("induction_heads", "note", ((1, 2),))
    assert finding.sentence.startswith("In 1 of 8 heads (block 1) a repeated token attends to what followed")


def test_sequences_without_a_value_are_left_out():
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_positions=16, n_embd=16, n_layer=1, n_head=2)).eval()
    once, twice = torch.arange(8)[None], TWICE
    both = attnscope.scan(model, [{"input_ids": torch.cat([once, twice])}], measures="induction,entropy")
    alone = attnscope.scan(model, [{"input_ids": twice}], measures="induction")
    np.testing.assert_allclose(both.values("induction"), alone.values("induction"), rtol=1e-5)
    (stack,) = both.stacks
    for measure, count in (("induction", 1), ("entropy", 2)):
        assert both.column(measure, "value", stack, "self")[0].moments.count.tolist() == [count, count]
