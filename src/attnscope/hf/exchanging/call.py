"""Variants installed in a model, and the attention calls they answer.

A variant is a submodule of the module that it changes (`layers.3.self_attn.attnscope_gated_output`), so that
`parameters()`, `to()`, `state_dict()` and copies of the model include it. Hooks and attention functions look it up
there: a copy of the model computes with its own variants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.core.registry import variants
from attnscope.core.variant import Size, Variant
from attnscope.hf.exchanging.recipe import PREFIX, Recipe
from attnscope.hf.intercepting.masks import FORBIDDING
from attnscope.hf.intercepting.owners import Slot
from attnscope.matrix.visibility import AttentionInputs

_CHANGES_LOGITS = {
    "softcap": "caps its logits",
    "s_aux": "has learned sinks",
    "position_bias": "adds a position bias to its logits",
    "head_mask": "masks whole heads",
    "cu_seq_lens_q": "packs several texts into one row",
    "cu_seq_lens_k": "packs several texts into one row",
}
_ANOTHER = "which the variant would drop: choose a variant of kind output, block or weights, or another model."


@dataclass(frozen=True)
class AttentionRequest:
    """One call of an attention function, and the model's own function for it.

    `fused` says whether that function applies `is_causal` if there is no mask, as torch does.
    """

    original: Callable[..., tuple[Tensor, Any]]
    fused: bool
    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Any
    options: Mapping[str, Any]

    def plain(self, value: Tensor | None = None) -> tuple[Tensor, Any]:
        """Return the model's own attention, optionally with other values."""
        value = self.value if value is None else value
        return self.original(self.module, self.query, self.key, value, self.mask, **self.options)

    @property
    def dropout(self) -> float:
        return float(self.options.get("dropout") or 0.0)

    def read(self) -> AttentionInputs:
        """Return the inputs of a variant; refuse options that change the logits, which a variant would drop.

        For fused attention, masks are boolean, or None if `is_causal` is enough. For eager attention, masks are numbers
        that are added to the logits.
        """
        query, key, value, options = self.query, self.key, self.value, self.options
        for name, words in _CHANGES_LOGITS.items():
            if options.get(name) is not None:
                raise RefusalError(f"{type(self.module).__name__} {words} ('{name}'), {_ANOTHER}")
        causal = False
        if self.mask is None and self.fused and query.shape[2] > 1:
            flag = options.get("is_causal")
            causal = bool(getattr(self.module, "is_causal", True) if flag is None else flag)
        if causal and key.shape[2] > query.shape[2]:  # a cache with unused entries at its end
            key, value = key[:, :, : query.shape[2]], value[:, :, : query.shape[2]]
        scale = options.get("scaling")
        return AttentionInputs(
            query=query,
            key=key,
            value=value,
            visible=_visible(self.module, self.mask, key.shape[2]),
            causal=causal,
            scale=query.shape[-1] ** -0.5 if scale is None else float(scale),
        )


def _visible(module: nn.Module, mask: Any, keys: int) -> Tensor | None:
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.ndim != 4:
        raise RefusalError(
            f"The mask of {type(module).__name__} is a {type(mask).__name__}, which cannot be read: load the model "
            "with attn_implementation='sdpa' or 'eager'."
        )
    cut: Tensor = mask[..., :keys]
    if cut.dtype == torch.bool:
        return cut
    forbidden: Tensor = cut <= FORBIDDING
    if not bool(((cut == 0) | forbidden).all()):
        raise RefusalError(f"{type(module).__name__} adds a bias to its logits, {_ANOTHER}")
    return ~forbidden


@dataclass
class SharedTensors:
    """Tensors that one variant stores for another during a forward pass; shared by all variants of an installation."""

    tensors: dict[str, Any] = field(default_factory=dict)


class InstalledVariant(nn.Module):
    """The tensors and settings of one variant in one module. `heads` are the treated heads, or None for all."""

    def __init__(
        self,
        recipe: Recipe,
        size: Size,
        begun: Mapping[str, Tensor],
        settings: Mapping[str, Any],
        *,
        heads: tuple[int, ...] | None = None,
        carried: SharedTensors | None = None,
        role: str = "",
        slot: Slot = 0,
    ) -> None:
        super().__init__()
        self.recipe, self.size, self.settings, self.heads = recipe, size, dict(settings), heads
        self.role = role  # "first" or "last" in a chain of blocks, "sees" (stores the mask for a variant), or ""
        self.slot = slot  # which of several tensors it changes
        self.carried = SharedTensors() if carried is None else carried
        self.held: dict[str, Any] = {}  # values for the current call
        self.weight_in_effect: Callable[[nn.Module], Tensor] | None = None  # if it changes the weight of its module
        drawn = variants()[recipe.variant].card.drawn
        for name, tensor in begun.items():
            if _is_drawn(name, drawn):
                self.register_buffer(name, tensor)
            else:
                self.register_parameter(name, nn.Parameter(tensor))

    @property
    def variant(self) -> Variant:
        return variants()[self.recipe.variant]

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of the variant's function: its tensors and its settings."""
        return {**self._parameters, **self._buffers, **self.settings}

    @property
    def stays_a_norm(self) -> bool:
        """Whether a norm module with this variant still counts as a norm: only if its output is merely scaled."""
        return self.recipe.variant == "layer_scaling"

    def extra_repr(self) -> str:
        heads = "" if self.heads is None else f", heads {list(self.heads)}"
        return f"{self.recipe.variant}{heads}"


def _is_drawn(name: str, drawn: Mapping[str, str]) -> bool:
    # The tensors of mixed_heads are named KIND_TENSOR.
    kinds = {f"{kind}_{tensor}" for kind, other in variants().items() for tensor in other.card.drawn}
    return name in drawn or name in kinds


def attach(changes: ExitStack, module: nn.Module, installed: InstalledVariant) -> None:
    """Add the variant as a submodule; `changes` removes it."""
    name = f"{PREFIX}{installed.recipe.variant}"
    module.add_module(name, installed)
    changes.callback(module._modules.pop, name, None)


def variant_in(module: nn.Module) -> InstalledVariant | None:
    """Return the variant attached to this module itself, or None."""
    for name, child in module._modules.items():
        if name.startswith(PREFIX) and isinstance(child, InstalledVariant):
            return child
    return None


def on_variant(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Turn `hook(installed, ...)` into a hook of the module, which does nothing if the module has no variant."""

    def found(module: nn.Module, *rest: Any) -> Any:
        installed = variant_in(module)
        return None if installed is None else hook(installed, *rest)

    return found


def installed_in(model: nn.Module) -> Iterator[tuple[str, InstalledVariant]]:
    """Yield path and variant for every installed variant of a model."""
    for path, module in model.named_modules():
        if isinstance(module, InstalledVariant):
            yield path, module


def recipe_of(model: nn.Module) -> Recipe | None:
    """Return the recipe of the variant installed in a model, or None."""
    return next((installed.recipe for _, installed in installed_in(model)), None)


def gated(model: nn.Module) -> bool:
    """Return whether a gate on heads or values is installed in a model."""
    return any("gate_weight" in installed.arguments for _, installed in installed_in(model))
