"""Sliding windows and sparse blocks, which mix values in several products, are observed as one call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

import attnscope
from attnscope.core.errors import RefusalError
from attnscope.data.frame import AttentionFrame, StreamFrame
from attnscope.hf.anatomy.anatomy import anatomy
from attnscope.hf.intercepting.masks import dense_pattern
from attnscope.hf.intercepting.owners import first_output
from attnscope.hf.intercepting.pieces import how_often_listed
from attnscope.hf.tapping.capture import capture
from attnscope.hf.tapping.entrances import entrances
from attnscope.hf.tapping.tap import Frame, tap
from attnscope.hf.tapping.verify import verify
from tests.hf.tiny import tiny

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
    "block_size": 4,
}
BLOCKS = 12


def sparse(random_blocks: int = 2) -> tuple[Any, dict[str, Tensor]]:
    torch.manual_seed(0)
    model = hf.BigBirdModel(hf.BigBirdConfig(**SIZES, num_random_blocks=random_blocks)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    ids = torch.randint(3, 64, (2, 4 * BLOCKS))
    mask = torch.ones_like(ids)
    mask[1, 4 * BLOCKS - 7 :] = 0
    return model, {"input_ids": ids, "attention_mask": mask}


def windows(tokens: int, globally: list[list[int]] | None = None) -> tuple[nn.Module, dict[str, Tensor]]:
    model, batch = tiny("longformer")
    ids = batch["input_ids"][:, :tokens]
    mask = torch.ones_like(ids)
    mask[1, tokens - 3 :] = 0
    more = {}
    if globally is not None:
        more["global_attention_mask"] = torch.zeros_like(ids)
        for row, places in enumerate(globally):
            more["global_attention_mask"][row, places] = 1
    return model, {"input_ids": ids, "attention_mask": mask, **more}


def attention(model: nn.Module, batch: dict[str, Tensor]) -> list[AttentionFrame]:
    frames: list[Frame] = []
    with torch.no_grad(), tap(model, anatomy(model, batch), frames.append):
        model(**batch)
    streams = [f for f in frames if isinstance(f, StreamFrame) and f.stack == frames[0].stack]
    assert all(torch.equal(f.token_mask, streams[0].token_mask) for f in streams)
    return [f for f in frames if isinstance(f, AttentionFrame)]


@pytest.mark.parametrize("tokens", [12, 11, 9])  # whole windows of 4, and lengths that the model pads itself
@pytest.mark.parametrize("globally", [None, [[0], [0, 4]]])
def test_windows_with_global_tokens_are_verified(tokens: int, globally: list[list[int]] | None) -> None:
    model, batch = windows(tokens, globally)
    result = verify(model, batch)
    assert result.passed, result.sentence
    assert result.routes == ("pieces",)
    # Float64 against a float32 softmax over at most 12 keys and products of 8 terms: some tens of roundings of 6e-8
    # each.
    assert result.largest < 64 * torch.finfo(torch.float32).eps / 2
    for frame in attention(model, batch):
        real = int(batch["attention_mask"].sum())
        listed = sum(len(row) for row in globally or [])
        assert int(frame.query_mask.sum()) == (real - listed if frame.site == "self" else listed)
        assert int(frame.key_mask.sum()) == real


def test_a_window_ends_where_it_should_and_global_tokens_are_seen_from_everywhere() -> None:
    model, batch = windows(12, [[0], [0, 4]])
    near, globally = attention(model, batch)[:2]
    assert (near.site, globally.site) == ("self", "uneven")
    seen = dense_pattern(near.scores)[1, 0] > 0  # of the second sequence
    assert seen[6].nonzero().flatten().tolist() == [0, 4, 5, 6, 7, 8]  # two on either side, and the global ones
    assert dense_pattern(globally.scores).shape == (2, 4, 2, 12)
    assert globally.query_mask.tolist() == [[True, False], [True, True]]
    assert bool((dense_pattern(globally.scores)[1, :, :, :9] > 0).all())


def test_attention_of_the_led_encoder_is_observed() -> None:
    model, batch = tiny("led")
    survey = attnscope.scan(model, [batch], measures=["entropy", "relative_residual"])
    assert survey.places("entropy") == (("encoder", "self"), ("decoder", "self"), ("decoder", "cross"))
    assert "notes" not in survey.provenance


@pytest.mark.parametrize("random_blocks", [1, 3])
def test_sparse_blocks_are_verified_with_and_without_padding(random_blocks: int) -> None:
    model, batch = sparse(random_blocks)
    for given in (batch, {"input_ids": batch["input_ids"]}, {n: t[:, :-3] for n, t in batch.items()}):
        result = verify(model, given)
        assert result.passed, result.sentence
        assert result.largest < 64 * torch.finfo(torch.float32).eps / 2
    assert model.config.attention_type == "block_sparse"


def test_listed_blocks_equal_a_table_by_hand() -> None:
    times = how_often_listed(7, 2)
    assert times[0].tolist() == times[6].tolist() == [1] * 7
    assert times[1].tolist() == [3, 1, 1, 0, 0, 0, 1]  # itself and its neighbours; the first block twice more
    assert times[3].tolist() == [3, 0, 1, 1, 1, 0, 1]
    assert times[5].tolist() == [3, 0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("tokens", [12, 11, 3])  # whole blocks of 4, a padded block, and less than one block
def test_neighbouring_blocks_are_verified(tokens: int) -> None:
    model, batch = tiny("longt5")
    batch = {name: rows if name.startswith("decoder") else rows[:, :tokens] for name, rows in batch.items()}
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    batch["attention_mask"][1, tokens - 2 :] = 0
    result = verify(model, batch)
    assert result.passed, result.sentence
    assert "pieces" in result.routes
    assert result.largest < 64 * torch.finfo(torch.float32).eps / 2
    first = next(f for f in attention(model, batch) if f.stack == "encoder")
    seen = dense_pattern(first.scores)[0, 0] > 0
    away = (torch.arange(tokens)[:, None] - torch.arange(tokens)).abs()
    assert torch.equal(seen, away <= 3)  # up to the radius, whatever the block of the key
    assert first.query_mask.tolist() == first.key_mask.tolist() == batch["attention_mask"].bool().tolist()


@pytest.mark.parametrize("kind", ["windows", "blocks", "neighbours"])
def test_gradient_at_the_output_of_pieces(kind: str) -> None:
    """The reference is the gradient of a tensor of zeros that is added to the output."""
    made = {"windows": lambda: tiny("longformer"), "blocks": sparse, "neighbours": lambda: tiny("longt5")}
    model, batch = made[kind]()
    batch = {name: rows[:1] for name, rows in batch.items()}
    found = anatomy(model, batch)
    assert found.sites[0].route == "pieces"
    places = entrances(model, batch, found)
    call = capture(model, batch, found, places, lambda output: output[:, 1].norm(dim=-1)).calls[0]
    nothing = torch.zeros_like(call.gradient.flatten(2)).requires_grad_()

    def given(_: nn.Module, args: Any) -> Any:
        return (args[0] + nothing,)

    def gave(_: nn.Module, args: Any, answer: Any) -> Any:
        return (answer[0] + nothing, *answer[1:])

    owner: Any = model.get_submodule(found.sites[0].path)
    last = kind == "neighbours"  # its output is the projection of the mixed values
    handle = owner.o.register_forward_pre_hook(given) if last else owner.register_forward_hook(gave)
    (slope,) = torch.autograd.grad(first_output(model(**batch))[:, 1].norm(dim=-1).sum(), nothing)
    handle.remove()
    torch.testing.assert_close(call.gradient.flatten(2), slope)
    assert float(slope.abs().max()) > 0


def test_a_scan_leaves_sparse_attention_as_it_was() -> None:
    model, batch = sparse()
    forwards = [vars(module).get("forward") for module in model.modules()]
    with torch.no_grad():
        before = model(**batch)[0]
        survey = attnscope.scan(model, [batch], measures=["entropy"])
        assert torch.equal(model(**batch)[0], before)
    assert survey.provenance["routes"] == ["pieces"]
    assert [vars(module).get("forward") for module in model.modules()] == forwards


def test_a_batch_too_short_for_sparse_blocks_is_refused_and_changes_nothing() -> None:
    model, batch = sparse()
    modules = dict(model.named_modules())
    short = {name: rows[:, :9] for name, rows in batch.items()}
    with pytest.raises(RefusalError, match="sequences that are long enough for its sparse attention"):
        attnscope.scan(model, [short])
    with pytest.raises(RefusalError, match="sequences that are long enough for its sparse attention"):
        attnscope.scan(model, [batch, short], measures=["entropy"])
    assert dict(model.named_modules()) == modules
    assert model.config.attention_type == "block_sparse"


def test_overlapping_taps_get_the_same_calls() -> None:
    model, batch = windows(12)
    found = anatomy(model, batch)
    one, two = list[Frame](), list[Frame]()
    with torch.no_grad(), tap(model, found, one.append), tap(model, found, two.append):
        model(**batch)
    assert [(f.site, f.layer) for f in one] == [(f.site, f.layer) for f in two]
    assert sum(isinstance(f, AttentionFrame) for f in one) == 2
