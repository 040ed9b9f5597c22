"""Small language models with random weights that compute in float64 throughout."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

WIDTH, WORDS = 16, 40
SIZES = {
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def small_model(name: str) -> Any:
    grouped = {**SIZES, "num_key_value_heads": 2}
    makers = {
        "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**grouped)),
        "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=WORDS, n_embd=WIDTH, n_layer=2, n_head=4)),
        "sliding window": lambda: hf.MistralForCausalLM(hf.MistralConfig(**grouped, sliding_window=4)),
        "bert": lambda: hf.BertForMaskedLM(hf.BertConfig(**SIZES)),
        "bert with a language head": lambda: hf.BertLMHeadModel(hf.BertConfig(**SIZES)),
    }
    torch.manual_seed(0)
    return with_exact_norms(makers[name]().double().eval())


def with_exact_norms(model: nn.Module) -> nn.Module:
    """Let RMS norms compute in the dtype of their input: transformers rounds it to float32."""

    def exact(norm: Any) -> Any:
        def forward(hidden: Tensor) -> Tensor:
            return nn.functional.rms_norm(hidden, hidden.shape[-1:], norm.weight, norm.variance_epsilon)

        return forward

    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            vars(module)["forward"] = exact(module)
    return model
