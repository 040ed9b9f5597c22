"""Gradient checkpointing runs blocks a second time, alone: what one block gives another is then not there."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from torch import nn

from attnscope.core.errors import RefusalError
from attnscope.hf.exchanging.plan import Plan


def refuse_checkpointing(changes: ExitStack, plan: Plan) -> None:
    """For variants that carry tensors from block to block: a forward in training mode with it is refused."""
    name = plan.recipe.variant

    def refuse(module: nn.Module, args: tuple[Any, ...]) -> None:
        if module.training and getattr(module, "gradient_checkpointing", False):
            raise RefusalError(
                f"{name} carries tensors from block to block, which gradient checkpointing would lose: turn it off "
                "(model.gradient_checkpointing_disable())."
            )

    for path in dict.fromkeys(block.path for block in plan.stack.blocks):
        changes.callback(plan.model.get_submodule(path).register_forward_pre_hook(refuse).remove)
