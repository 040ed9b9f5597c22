"""Tiny models for tests of installed variants, built once and shared."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

from attnscope.papers.models.nano import Config, Nano

LAYERS, HEADS = 2, 4
# Weights ten times larger than usual make attention far from uniform, so that a variant changes the output.
SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 24,
    "initializer_range": 0.2,
}
TOKENS = torch.randint(3, 60, (2, 9), generator=torch.Generator().manual_seed(0))


def bert() -> nn.Module:
    return hf.BertForMaskedLM(hf.BertConfig(vocab_size=60, **SIZES))


def gpt2() -> nn.Module:
    config = hf.GPT2Config(
        vocab_size=60,
        n_layer=LAYERS,
        n_head=HEADS,
        n_embd=16,
        n_positions=32,
        initializer_range=0.2,
        bos_token_id=0,
        eos_token_id=1,
        attn_pdrop=0.0,
    )
    return hf.GPT2LMHeadModel(config)


def llama() -> nn.Module:
    return hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=60, num_key_value_heads=2, **SIZES))


def qwen2() -> nn.Module:
    return hf.Qwen2ForCausalLM(hf.Qwen2Config(vocab_size=60, num_key_value_heads=2, **SIZES))


def vit() -> nn.Module:
    return hf.ViTForImageClassification(hf.ViTConfig(image_size=16, patch_size=4, **SIZES))


def nano() -> nn.Module:
    return Nano(Config(vocab_size=60, width=16, heads=HEADS, layers=LAYERS, causal=True, mlp=16, initial=0.6), seed=0)


FAMILIES: dict[str, Callable[[], nn.Module]] = {one.__name__: one for one in (bert, gpt2, llama, qwen2, vit, nano)}


def made(family: str) -> Any:
    torch.manual_seed(0)
    return FAMILIES[family]().eval()


@cache
def kept(family: str) -> Any:
    """Return a shared model, for tests that restore it."""
    return made(family)


def batch_of(model: Any) -> dict[str, Tensor]:
    if getattr(model, "main_input_name", "") == "pixel_values":
        return {"pixel_values": torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))}
    return {"input_ids": TOKENS}


@torch.no_grad()
def logits(model: Any) -> Tensor:
    answer = model(**batch_of(model))
    found: Tensor = getattr(answer, "logits", answer)
    return found
