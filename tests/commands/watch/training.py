"""Small models in training, with and without a watch, for the tests of the watch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from attnscope.commands.watch.look import Look

STEPS = 6
VOCABULARY, TOKENS, SEQUENCES = 48, 12, 4


def gpt2(seed: int = 0, dropout: float = 0.1) -> GPT2LMHeadModel:
    """Fused projections, biases, and dropout everywhere."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=32,
        n_embd=24,
        n_layer=2,
        n_head=3,
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
    )
    return GPT2LMHeadModel(config).train()


def llama(seed: int = 0, dropout: float = 0.1, kv_heads: int = 2) -> LlamaForCausalLM:
    """Separate projections, heads that share keys."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        max_position_embeddings=32,
        attention_dropout=dropout,
        initializer_range=0.2,
    )
    return LlamaForCausalLM(config).train()


def batch(step: int, sequences: int = SEQUENCES) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(100 + step)
    ids = torch.randint(0, VOCABULARY, (sequences, TOKENS), generator=rng)
    return {"input_ids": ids, "labels": ids}


class Run:
    """The results of a training, to be compared bit for bit."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, losses: list[float]) -> None:
        self.weights = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.buffers = {name: b.detach().clone() for name, b in model.named_buffers()}
        self.moments = [
            value.clone() for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)
        ]
        self.random = torch.get_rng_state()
        self.losses = losses

    def assert_equal(self, other: Run) -> None:
        assert self.losses == other.losses
        assert torch.equal(self.random, other.random)
        for mine, theirs in ((self.weights, other.weights), (self.buffers, other.buffers)):
            assert mine.keys() == theirs.keys()
            assert all(torch.equal(mine[name], theirs[name]) for name in mine)
        assert len(self.moments) == len(other.moments) > 0
        assert all(torch.equal(a, b) for a, b in zip(self.moments, other.moments, strict=True))


def numbers_of(look: Look, *words: Any) -> np.ndarray:
    """Return the values of a measure in a look; fail if they are missing."""
    found = look.find(*words)
    assert found is not None
    return found.numbers


def train(
    model: nn.Module,
    watching: Callable[[nn.Module], AbstractContextManager[Any]] | None = None,
    *,
    steps: int = STEPS,
    first: int = 0,
    accumulate: int = 1,
    autocast: torch.dtype | None = None,
    rate: float = 1e-2,
    called: Any = None,
    evaluate: bool = False,
    optimizer: torch.optim.Optimizer | None = None,
) -> Run:
    """Train in a plain loop. `called` is the module that the loop calls, if it wraps the model."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=rate)
    losses: list[float] = []
    torch.manual_seed(7)
    called = model if called is None else called
    with nullcontext() if watching is None else watching(called) as watch:
        for step in range(first, first + steps):
            optimizer.zero_grad()
            for part in range(accumulate):
                with torch.autocast("cpu", autocast, enabled=autocast is not None):
                    loss = called(**batch(step * accumulate + part)).loss / accumulate
                loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if watch is not None:
                watch.step(loss=loss)
            if evaluate:
                called.eval()
                with torch.no_grad():
                    called(**batch(1000 + step))
                called.train()
    return Run(model, optimizer, losses)
