"""The decoder is Llama's, and its parts are the variants of the catalog."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from attnscope.core.errors import RefusalError
from attnscope.core.registry import variants
from attnscope.hf.loading.load import load
from attnscope.papers.models.decoder import PARTS, Decoder, Shape
from attnscope.papers.trials.spike_forms import pocket_decoder

SHAPE = Shape(11, width=16, heads=2, layers=2, hidden=8)
IDS = torch.randint(0, 11, (2, 9), generator=torch.Generator().manual_seed(0))
PATTERNS = [name for name, one in variants().items() if one.card.kind == "pattern" and one.card.causal]


def test_decoder_with_pocket_weights_equals_pocket() -> None:
    ours, stream = pocket_decoder()
    ids = F.pad(stream[None, :40], (1, 0))
    with torch.no_grad():
        theirs = load("pocket").model(input_ids=ids).logits
        # float32 logits up to 20 after 6 layers: rounding in another order is some 1e-5 of them
        assert (ours(ids) - theirs).abs().max() < 2e-3
    assert (ours.observe(ids).logits - theirs).abs().max() < 2e-3


@pytest.mark.parametrize("shape", [replace(SHAPE, parts=(part,)) for part in PARTS], ids=str)
def test_every_part_changes_the_answer_and_none_sees_the_future(shape: Shape) -> None:
    model, plain = Decoder(shape), Decoder(SHAPE)
    with torch.no_grad():
        for one in model.parameters():
            one.add_(0.05 * torch.randn(one.shape, generator=torch.Generator().manual_seed(1)))
        later = IDS.clone()
        later[:, 5:] = (later[:, 5:] + 1) % 11
        assert torch.equal(model(IDS)[:, :5], model(later)[:, :5])
        assert not torch.allclose(model(IDS), plain(IDS))


@pytest.mark.parametrize("name", PATTERNS)
def test_every_pattern_trains_and_observe_equals_forward(name: str) -> None:
    model = Decoder(replace(SHAPE, pattern=name))
    answers = model(IDS)
    F.cross_entropy(answers.flatten(0, 1), IDS.flatten()).backward()
    assert all(torch.isfinite(one.grad).all() for one in model.parameters() if one.grad is not None)
    seen = model.observe(IDS)
    assert torch.equal(seen.logits, answers)
    assert len(seen.streams) == 1 + 2 * SHAPE.layers
    known = variants()[name].pattern is not None and variants()[name].card.keys_are_tokens
    assert all((one is not None) == known for one in seen.patterns)
    if known:
        assert all(one.triu(1).abs().max() == 0 for one in seen.patterns if one is not None)


def test_a_part_that_does_not_exist_is_refused() -> None:
    with pytest.raises(RefusalError, match="no part called"):
        Shape(11, parts=("sandwich",))
    with pytest.raises(RefusalError, match="qk_norm"):
        Shape(11, pattern="softpick", parts=("qk_norm",))
    with pytest.raises(RefusalError, match="pairs"):
        Shape(11, head_width=5)


def test_settings_and_starts_reach_the_pattern() -> None:
    near = Decoder(replace(SHAPE, pattern="local", settings=(("window", 1),))).observe(IDS).patterns[0]
    assert near is not None
    assert near.tril(-2).abs().max() == 0
    begun = Decoder(replace(SHAPE, pattern="learned_sink", starts=(("share", 1.0),))).observe(IDS).patterns[0]
    assert begun is not None
    assert float(begun.sum(-1).max()) < 1.0  # the sink takes a part of every row
