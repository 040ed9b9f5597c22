"""A penalty on attention to other tokens than the first.

A softmax head cannot abstain: if it has nothing to add, it attends to a token whose value is small. In larger models
the first token takes this role without help (arXiv:2410.10781). Here it did not: in no run that was trained on text of
256 tokens did a head have more than 0.14 of its attention there at the last look (`tried.json`; run D, trained on
random tokens alone, had 0.54), and a penalty on what heads *write* made them average over all tokens instead. So late
in training attention to other tokens is penalised, and only attention that reduces the loss by more should remain.
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
    """Inside this context, every forward pass with gradients appends one number per block to the list: the attention
    that is not on the first token, summed over heads and averaged over rows and queries."""
    looks: list[Tensor] = []

    def note(_module: torch.nn.Module, _given: Any, gave: tuple[Tensor, Tensor]) -> None:
        if torch.is_grad_enabled():
            looks.append((1 - gave[1][:, :, 1:, 0]).mean((0, 2)).sum())  # query 0 sees only the first token

    before = model.config._attn_implementation
    model.set_attn_implementation("eager")  # other implementations return no attention matrices
    hooks = [layer.self_attn.register_forward_hook(note) for layer in model.model.layers]
    try:
        yield looks
    finally:
        for hook in hooks:
            hook.remove()
        model.set_attn_implementation(before)
