"""A planted head shows its pattern in the tap, does not change other heads, and is removed afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.data.frame import AttentionFrame
from attnscope.heads.head import Head
from attnscope.hf.anatomy.anatomy import Anatomy, anatomy
from attnscope.hf.editing.graft import planted
from attnscope.hf.intercepting.masks import dense_pattern
from attnscope.hf.tapping.tap import tap
from attnscope.papers.models.nano import Config, Nano
from tests.hf.families import FAMILIES, GROUPED, TEXT

N = 12


def compiled(causal: bool = True, n: int = N, width: int = 4, size: float = 2.0, seed: int = 0) -> Head:
    """Return a head with a distinctive pattern: not uniform, not one key, and different in every row."""
    generator = torch.Generator().manual_seed(seed)
    queries, keys = (torch.randn(n, width, generator=generator) * size for _ in range(2))
    return Head(queries, keys, causal, "by hand")


def family(name: str) -> nn.Module:
    return next(f for f in FAMILIES if f.name == name).model()


def ids(tokens: int = N, seed: int = 3) -> Tensor:
    return torch.randint(3, 60, (2, tokens), generator=torch.Generator().manual_seed(seed))


def patterns(
    model: nn.Module, batch: dict[str, Any], layer: int, found: Anatomy
) -> Float[Tensor, "batch head query key"]:
    caught: list[Tensor] = []

    def receive(frame: object) -> None:
        if isinstance(frame, AttentionFrame) and frame.layer == layer and frame.site == "self":
            caught.append(dense_pattern(frame.scores))

    with torch.no_grad(), tap(model, found, receive):
        model(**batch)
    assert len(caught) == 1
    return caught[0]


def llama(heads: int) -> nn.Module:
    torch.manual_seed(1)
    return hf.LlamaForCausalLM(hf.LlamaConfig(**{**TEXT, "num_key_value_heads": heads}, initializer_range=0.3)).eval()


def nano(causal: bool = True, **more: Any) -> nn.Module:
    return Nano(Config(vocab_size=64, width=32, heads=4, layers=2, causal=causal, mlp=32, **more), seed=1).eval()


WHOLE: dict[str, Callable[[], nn.Module]] = {
    "GPT-2": lambda: family("GPT-2"),  # one module projects queries, keys and values
    "Llama": lambda: llama(4),  # rotary in halves
    "GPT-NeoX": lambda: family("GPT-NeoX"),  # fused, interleaved by head, rotary on a quarter
    "OPT": lambda: family("OPT"),  # queries are scaled before the products
    "Phi": lambda: family("Phi"),  # rotary on half of the head
    "nano": nano,
    "nano, no norm": lambda: nano(norm="none"),
}


@pytest.mark.parametrize("name", WHOLE)
def test_planted_head_shows_its_pattern_and_other_heads_are_unchanged(name: str) -> None:
    model, head, batch = WHOLE[name](), compiled(), {"input_ids": ids()}
    layer = len(name) % 2  # both occur
    found = anatomy(model)
    before, own = model(**batch), patterns(model, batch, layer, found)
    with planted(model, head, layer, 2, found=found) as plant:
        seen = patterns(model, batch, layer, found)
        assert not torch.equal(_logits(model(**batch)), _logits(before))
    assert float((seen[:, 2] - head.attention()).abs().max()) < 1e-5
    assert plant.deviation < 1e-5
    assert plant.shares_keys_with == ()
    assert torch.equal(seen[:, [0, 1, 3]], own[:, [0, 1, 3]])
    assert torch.equal(_logits(model(**batch)), _logits(before))
    assert torch.equal(patterns(model, batch, layer, found), own)


def test_texts_shorter_than_a_causal_head_show_its_first_rows() -> None:
    model, head = llama(4), compiled()
    with planted(model, head, 1, 0) as plant:
        seen = patterns(model, {"input_ids": ids(5)}, 1, plant.found)
    assert float((seen[:, 0] - head.attention(0, 5)[:, :5]).abs().max()) < 1e-5


@pytest.mark.parametrize("build", [lambda: llama(2), lambda: family("Qwen2")], ids=["Llama", "Qwen2"])
def test_grouped_heads_share_the_planted_keys(build: Callable[[], nn.Module]) -> None:
    model, head, batch = build(), compiled(), {"input_ids": ids()}
    found = anatomy(model)
    own = patterns(model, batch, 0, found)
    with pytest.raises(RefusalError, match="heads 3 would read the planted keys too: pass share_keys=True"):
        planted(model, head, 0, 2, found=found).__enter__()
    with planted(model, head, 0, 2, share_keys=True, found=found) as plant:
        seen = patterns(model, batch, 0, found)
    assert plant.shares_keys_with == (3,)
    assert float((seen[:, 2] - head.attention()).abs().max()) < 1e-5
    assert torch.equal(seen[:, :2], own[:, :2])
    assert not torch.equal(seen[:, 3], own[:, 3])
    assert torch.equal(patterns(model, batch, 0, found), own)


@pytest.mark.parametrize("name", ["BERT", "ALBERT", "ModernBERT"])
def test_bidirectional_heads_fit_encoders(name: str) -> None:
    """ALBERT shares one module between blocks, and only the chosen one may change. ModernBERT is rotary and fused."""
    model, head, batch = family(name), compiled(causal=False), {"input_ids": ids()}
    layer = 0 if name == "ModernBERT" else 1
    found = anatomy(model)
    own = patterns(model, batch, 0, found)
    with planted(model, head, layer, 1, found=found):
        seen = patterns(model, batch, layer, found)
        below = patterns(model, batch, 0, found)
    assert float((seen[:, 1] - head.attention()).abs().max()) < 1e-5
    if layer == 1:
        assert torch.equal(below, own)


def test_planted_head_has_a_row_for_every_patch() -> None:
    model, head = family("ViT"), compiled(causal=False, n=10)
    batch = {"pixel_values": torch.randn(2, 3, 24, 24, generator=torch.Generator().manual_seed(0))}
    with planted(model, head, 1, 3) as plant:
        seen = patterns(model, batch, 1, plant.found)
    assert float((seen[:, 3] - head.attention()).abs().max()) < 1e-5
    with pytest.raises(RefusalError, match="runs on 10 tokens"):
        planted(model, compiled(causal=False, n=9), 1, 3).__enter__()


def test_encoder_decoder_needs_a_stack_name() -> None:
    model, head = family("BART"), compiled()
    found = anatomy(model)
    with pytest.raises(RefusalError, match="stacks encoder, decoder: choose one"):
        planted(model, head, 0, 0, found=found).__enter__()
    batch = {"input_ids": ids(7), "decoder_input_ids": ids()}
    with planted(model, head, 0, 0, stack="decoder", found=found) as plant:
        caught: list[AttentionFrame] = []
        receive = lambda f: caught.append(f) if isinstance(f, AttentionFrame) and f.stack == "decoder" else None  # noqa: E731
        with torch.no_grad(), tap(model, plant.found, receive):
            model(**batch)
    assert float((dense_pattern(caught[0].scores)[:, 0] - head.attention()).abs().max()) < 1e-5


def test_deviation_is_zero_in_float64_and_reported_in_bfloat16() -> None:
    exact, coarse = nano().double(), nano().bfloat16()
    head = compiled()
    with planted(exact, Head(head.queries.double(), head.keys.double(), True, "by hand"), 0, 0) as plant:
        assert plant.deviation < 1e-12
    with planted(coarse, head, 0, 0, tolerance=0.5) as plant:
        assert 1e-4 < plant.deviation < 0.2
    with pytest.raises(RefusalError, match="in bfloat16"):
        planted(coarse, compiled(size=20.0), 0, 0).__enter__()


def test_everything_is_restored_after_an_exception() -> None:
    model, batch = family("GPT-2"), {"input_ids": ids()}
    before = _logits(model(**batch))
    with pytest.raises(IndexError), planted(model, compiled(), 0, 1):
        model(input_ids=batch["input_ids"] + 1000)  # no such tokens
    assert torch.equal(_logits(model(**batch)), before)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_training_mode_stays_as_it_was() -> None:
    model = family("GPT-2").train()
    with planted(model, compiled(), 0, 1):
        assert all(module.training for module in model.modules())
        model(input_ids=ids())["logits"].sum().backward()
    slope = model.get_parameter("transformer.h.0.attn.c_attn.weight").grad
    assert slope is not None
    assert slope[:, 8:16].eq(0).all()  # the planted head's own queries


@pytest.mark.parametrize(
    ("name", "head", "where", "sentence"),
    [
        ("GPT-2", compiled(width=9), (0, 0), "the heads of GPT2LMHeadModel are 8: compile the pattern with `width=8`"),
        ("GPT-2", compiled(causal=False), (0, 0), "compile it with `causal=True`"),
        ("BERT", compiled(), (0, 0), "compile the pattern without `causal=`"),
        ("GPT-2", compiled(), (2, 0), "attends in blocks 0-1, not in block 2"),
        ("GPT-2", compiled(), (0, 4), "has heads 0 to 3, not 4"),
        ("Qwen3", compiled(), (0, 0), "norms queries and keys after projecting"),
        ("Gemma3", compiled(), (0, 0), "norms queries and keys after projecting"),
        ("Gemma2", compiled(), (0, 0), "caps its logits"),
        ("gpt_oss", compiled(), (0, 0), "learned sink"),
        ("Mistral", compiled(), (0, 0), "has a sliding window of 4 tokens"),
        ("Bloom", compiled(), (0, 0), "without an attention function"),
        ("GPT-J", compiled(), (0, 0), "without an attention function"),
        ("T5", compiled(causal=False), (0, 0), "adds a position bias"),
        (
            "GPT-2",
            Head(torch.ones(4, 2), torch.ones(5, 2), True, "by hand"),
            (0, 0),
            "self-attention needs equal numbers",
        ),
    ],
)
def test_impossible_plants_are_refused(name: str, head: Head, where: tuple[int, int], sentence: str) -> None:
    model = family(name)
    stack = "encoder" if name == "T5" else None
    with pytest.raises(RefusalError, match=sentence):
        planted(model, head, *where, stack=stack, share_keys=True).__enter__()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_window_longer_than_the_head_is_accepted() -> None:
    model = hf.MistralForCausalLM(hf.MistralConfig(**GROUPED, sliding_window=4)).eval()
    with planted(model, compiled(n=4), 0, 0, share_keys=True) as plant:
        assert plant.deviation < 1e-5


def test_texts_of_a_wrong_length_are_refused() -> None:
    model = family("GPT-2")
    with planted(model, compiled(), 0, 0):
        with pytest.raises(RefusalError, match="up to 12 tokens, but GPT2LMHeadModel reads 13"):
            model(input_ids=ids(13))
        with pytest.raises(RefusalError, match="position_ids"):
            model(input_ids=ids(3), position_ids=torch.tensor([[2, 3, 4]]))
        with pytest.raises(RefusalError, match="padded on the left"):
            model(input_ids=ids(3), attention_mask=torch.tensor([[0, 1, 1], [1, 1, 1]]))
        cache = model(input_ids=ids(3), use_cache=True).past_key_values
        with pytest.raises(RefusalError, match="use_cache=False"):
            model(input_ids=ids(1), past_key_values=cache)
    both = family("BERT")
    with planted(both, compiled(causal=False), 0, 0), pytest.raises(RefusalError, match="exactly 12 tokens"):
        both(input_ids=ids(11))


def test_head_longer_than_the_positions_is_cut() -> None:
    model, head = nano(max_tokens=8), compiled()
    with planted(model, head, 0, 0) as plant:
        seen = patterns(model, {"input_ids": ids(8)}, 0, plant.found)
    assert float((seen[:, 0] - head.attention(0, 8)[:, :8]).abs().max()) < 1e-5


def _logits(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output[0]
