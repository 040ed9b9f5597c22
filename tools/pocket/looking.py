"""A price on looking: what a head pays for attention that does not rest on the first token.

A softmax head cannot abstain: one that has nothing to say rests on a token whose value is small. In larger models the
first token becomes that place by itself (arXiv:2410.10781). Here it did not: in no run that was trained on text of
256 tokens did a head have more than 0.14 of its attention there at the last look (`tried.json`; run D, trained on
random tokens alone, had 0.54), and a price on what heads *write* made them average over all tokens instead. So late in
training looking itself costs something, and only looks that are worth their price should remain.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaForCausalLM


@contextmanager
def looks_elsewhere(model: LlamaForCausalLM) -> Iterator[list[Tensor]]:
    """While it is entered, every forward pass with gradients appends one number per block to the list: the attention of
    its heads, added up, that does not rest on the first token, in the mean over rows and queries."""
    looks: list[Tensor] = []

    def note(_module: torch.nn.Module, _given: Any, gave: tuple[Tensor, Tensor]) -> None:
        if torch.is_grad_enabled():
            looks.append((1 - gave[1][:, :, 1:, 0]).mean((0, 2)).sum())  # query 0 has no choice

    before = model.config._attn_implementation
    model.set_attn_implementation("eager")  # the others give no matrices
    hooks = [layer.self_attn.register_forward_hook(note) for layer in model.model.layers]
    try:
        yield looks
    finally:
        for hook in hooks:
            hook.remove()
        model.set_attn_implementation(before)
