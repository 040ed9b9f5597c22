"""Variants installed in a model, and the attention calls they answer.

A variant is attached below the module that it changes, under its name (`layers.3.self_attn.attnscope_gated_output`), so
that `parameters()`, `to()`, `state_dict()` and copies of the model include it. Hooks and attention functions look it
up there and are plain functions of the module: a copy of the model computes with its own variants.
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

_CHANGES_LOGITS = {
    "softcap": "caps its logits",
    "s_aux": "has learned sinks of its own",
    "position_bias": "adds a position bias to its logits",
    "head_mask": "masks whole heads",
    "cu_seq_lens_q": "packs several texts into one row",
    "cu_seq_lens_k": "packs several texts into one row",
}
_ANOTHER = "which another attention would lose: choose a variant of kind output, block or weights, or another model."


@dataclass(frozen=True)
class AttentionInputs:
    """Queries, keys and values `[batch, head, token, dim]`, and the rule between them."""

    query: Tensor
    key: Tensor
    value: Tensor
    visible: Tensor | None
    causal: bool
    scale: float
    dropout: float

    @property
    def rule(self) -> dict[str, Any]:
        return {"visible": self.visible, "causal": self.causal, "scale": self.scale}


@dataclass(frozen=True)
class AttentionRequest:
    """One call of an attention function, as the model makes it, and the model's own function for it.

    `fused` says whether that function takes a missing mask with `is_causal` for causality, as torch does.
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
        """Return the model's own attention, with other values if given."""
        value = self.value if value is None else value
        return self.original(self.module, self.query, self.key, value, self.mask, **self.options)

    def read(self) -> AttentionInputs:
        """Return what variants need; refuse what changes the logits and would be lost in another attention.

        Models give masks in the form of their implementation: booleans, or nothing if `is_causal` says it all, under
        fused attention; numbers that are added to logits under written-out attention.
        """
        query, key, value, options = self.query, self.key, self.value, self.options
        for name, words in _CHANGES_LOGITS.items():
            if options.get(name) is not None:
                raise RefusalError(f"{type(self.module).__name__} {words} ('{name}'), {_ANOTHER}")
        causal = False
        if self.mask is None and self.fused and query.shape[2] > 1:
            flag = options.get("is_causal")
            causal = bool(getattr(self.module, "is_causal", True) if flag is None else flag)
        if causal and key.shape[2] > query.shape[2]:  # a cache with room ahead, filled from the front
            key, value = key[:, :, : query.shape[2]], value[:, :, : query.shape[2]]
        scale = options.get("scaling")
        return AttentionInputs(
            query=query,
            key=key,
            value=value,
            visible=_visible(self.module, self.mask, key.shape[2]),
            causal=causal,
            scale=query.shape[-1] ** -0.5 if scale is None else float(scale),
            dropout=float(options.get("dropout") or 0.0),
        )


def _visible(module: nn.Module, mask: Any, keys: int) -> Tensor | None:
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.ndim != 4:
        raise RefusalError(
            f"{type(module).__name__} is given its mask in a form that cannot be read ({type(mask).__name__}): load "
            "the model with attn_implementation='sdpa' or 'eager'."
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
    """Tensors on their way from one place of a forward pass to another; shared by all variants of one installation."""

    tensors: dict[str, Any] = field(default_factory=dict)


class InstalledVariant(nn.Module):
    """The tensors and settings of one variant at one place. `heads` are those it treats; None: all."""

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
        self.role = role  # in a chain of places
        self.slot = slot  # where the tensor that it changes stands among several
        self.carried = SharedTensors() if carried is None else carried
        self.held: dict[str, Any] = {}  # for the current call
        self.weight_in_effect: Callable[[nn.Module], Tensor] | None = None  # of a module whose weight it changes
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
        """Whether a norm with this variant below it is still a norm."""
        return self.recipe.variant == "layer_scaling"

    def extra_repr(self) -> str:
        heads = "" if self.heads is None else f", heads {list(self.heads)}"
        return f"{self.recipe.variant}{heads}"


def _is_drawn(name: str, drawn: Mapping[str, str]) -> bool:
    # mixed_heads has the tensors of its kinds under their names
    kinds = {f"{kind}_{tensor}" for kind, other in variants().items() for tensor in other.card.drawn}
    return name in drawn or name in kinds


def attach(changes: ExitStack, module: nn.Module, installed: InstalledVariant) -> None:
    """Put the variant below the module, under its name; undone by `changes`."""
    name = f"{PREFIX}{installed.recipe.variant}"
    module.add_module(name, installed)
    changes.callback(module._modules.pop, name, None)


def variant_in(module: nn.Module) -> InstalledVariant | None:
    """Return the variant attached to this very module, if any."""
    for name, child in module._modules.items():
        if name.startswith(PREFIX) and isinstance(child, InstalledVariant):
            return child
    return None


def on_variant(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Turn `hook(installed, ...)` into a hook of the module, skipped if the module has no variant."""

    def found(module: nn.Module, *rest: Any) -> Any:
        installed = variant_in(module)
        return None if installed is None else hook(installed, *rest)

    return found


def installed_in(model: nn.Module) -> Iterator[tuple[str, InstalledVariant]]:
    """Yield every installed variant of a model, with its path."""
    for path, module in model.named_modules():
        if isinstance(module, InstalledVariant):
            yield path, module


def recipe_of(model: nn.Module) -> Recipe | None:
    """Return the recipe of the variant installed in a model, or None."""
    return next((installed.recipe for _, installed in installed_in(model)), None)


def gated(model: nn.Module) -> bool:
    """Return whether a gate on heads or values is installed anywhere in a model."""
    return any("gate_weight" in installed.arguments for _, installed in installed_in(model))
