"""A model's configuration pointed at an attention function of ours, and back.

The function and the mask function are registered together, under a name that nobody else has: without a mask function
under the same name a model would make no mask at all. The mask function is that of the implementation the model had, so
masks stay what they were, and modules that are not treated get the very function they had. transformers has no way to
take an entry back, so leaving takes it out of the mapping that all registries share.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from itertools import count
from typing import Any

from torch import Tensor, nn
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from attnscope.core.errors import RefusalError
from attnscope.hf.exchanging.attending import answer
from attnscope.hf.exchanging.part import part_of
from attnscope.hf.exchanging.recipe import PREFIX

KNOWN = ("sdpa", "eager")
_NUMBER = count(1)


def register(changes: ExitStack, variant: str, modules: Iterable[nn.Module]) -> None:
    """Every configuration of these modules asks for an attention that looks for parts; undone by `changes`."""
    configs: dict[int, Any] = {id(config): config for module in modules if (config := _config(module)) is not None}
    for config in configs.values():
        previous = config._attn_implementation
        if previous not in KNOWN:
            raise RefusalError(
                f"The model attends by '{previous}', whose masks cannot be read: load it with "
                "attn_implementation='sdpa' or 'eager'."
            )
        name = f"{PREFIX}{variant}_{next(_NUMBER)}"
        changes.callback(AttentionInterface._global_mapping.pop, name, None)
        changes.callback(AttentionMaskInterface._global_mapping.pop, name, None)
        AttentionInterface.register(name, attention_of_parts(previous))
        AttentionMaskInterface.register(name, AttentionMaskInterface._global_mapping[previous])
        changes.callback(setattr, config, "_attn_implementation_internal", previous)
        config._attn_implementation_internal = name


def attention_of_parts(previous: str) -> Callable[..., Any]:
    """What the registry hands out: the part of a module answers; a module without one attends as before."""

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None, **asked: Any
    ) -> Any:
        original, part = original_attention(module, previous), part_of(module)
        if part is None:
            return original(module, query, key, value, attention_mask, **asked)
        tensors = (query, key, value)
        return answer(part, original, module, tensors, attention_mask, asked, fused=previous == "sdpa")

    return attend


def original_attention(module: nn.Module, implementation: str) -> Callable[..., Any]:
    """The function that a module would have got; its file may have a registry of its own."""
    home = sys.modules.get(type(module).__module__)
    if implementation == "eager":
        written_out = getattr(home, "eager_attention_forward", None)
        if written_out is None:
            raise RefusalError(
                f"{type(module).__name__} has no written-out attention to go back to: load the model with "
                "attn_implementation='sdpa'."
            )
        return written_out  # type: ignore[no-any-return]
    registry = getattr(home, "ALL_ATTENTION_FUNCTIONS", ALL_ATTENTION_FUNCTIONS)
    return registry[implementation]  # type: ignore[no-any-return]


def _config(module: nn.Module) -> Any | None:
    return getattr(module, "config", None)
