"""A model small enough to be treated in tests: random weights that read pocket's tokens, with heads that matter."""

from __future__ import annotations

from functools import cache

import torch
import transformers as hf

from attnscope.hf.loading.in_memory import in_memory
from attnscope.hf.loading.load import Loaded, load

LAYERS, HEADS, WIDTH = 2, 2, 16
TEXT = (
    "Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do. Once or "
    "twice she had peeped into the book her sister was reading, but it had no pictures or conversations in it. So she "
    "was considering in her own mind, as well as she could, whether the pleasure of making a daisy-chain would be "
    "worth the trouble of getting up and picking the daisies, when suddenly a White Rabbit ran close by her. "
)


@cache
def patient() -> Loaded:
    tokenizer = load("pocket").tokenizer
    assert tokenizer is not None
    torch.manual_seed(0)
    config = hf.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        initializer_range=0.2,
    )
    model = hf.LlamaForCausalLM(config).eval().requires_grad_(False)
    with torch.no_grad():
        for block in model.model.layers:
            block.self_attn.o_proj.weight.mul_(4)  # so that heads matter
    return in_memory(model, tokenizer)
