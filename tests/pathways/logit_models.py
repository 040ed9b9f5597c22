"""Small models of many kinds with random weights, and the sums that a decomposed logit must satisfy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTJConfig,
    GPTJForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from attnscope.commands.logit_paths.record import LogitReport

SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}
GROUPED = {**SMALL, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0}
WIDE: dict[str, Any] = {"vocab_size": 64, "n_embd": 32, "n_layer": 3, "n_head": 4, "bos_token_id": 0, "eos_token_id": 0}
MODELS: dict[str, Callable[[], nn.Module]] = {
    "Llama: grouped keys, rotary": lambda: LlamaForCausalLM(LlamaConfig(**GROUPED)),
    "Qwen3: norms of queries and keys": lambda: Qwen3ForCausalLM(Qwen3Config(**GROUPED)),
    "GPT-2: learned positions, biases": lambda: GPT2LMHeadModel(GPT2Config(**WIDE)),
    "BERT: post-norm, biases": lambda: BertForMaskedLM(BertConfig(**SMALL)),
    "Gemma 2: sandwich norms": lambda: Gemma2ForCausalLM(Gemma2Config(**GROUPED, bos_token_id=1)),
    "GPT-J: parallel, written out": lambda: GPTJForCausalLM(GPTJConfig(**WIDE, rotary_dim=4)),
}
IDS = torch.tensor([[3, 9, 27, 18, 54, 34, 3, 9]])


def made(name: str, seed: int = 0) -> nn.Module:
    """Return a model in float64 with weights, biases and norms that are all random."""
    torch.manual_seed(seed)
    model = MODELS[name]().double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def check_sums(report: LogitReport, within: float = 1e-6) -> None:
    for side in ("query", "key"):
        logit = sum(getattr(source, f"{side}_logit") for source in report.sources) + report.bias
        lead = sum(getattr(source, f"{side}_lead") for source in report.sources) + report.bias_lead
        assert logit == pytest.approx(report.logit, rel=within)
        assert lead == pytest.approx(report.lead, rel=within, abs=within * abs(report.logit))
    grid = sum(map(sum, report.grid.lead)) + report.bias_lead
    assert grid == pytest.approx(report.lead, rel=within, abs=within * abs(report.logit))
    assert report.difference <= within * abs(report.logit)
