"""What an attention function is called with, read as variants want it: who sees whom, by which scale.

Models hand out masks in the form of their attention implementation: under fused attention booleans, or nothing where
`is_causal` says it all; written out, numbers that are added to logits. Whatever else stands at a call and changes the
logits (soft-capping, learned sinks, position biases) would be lost in another attention, and is refused.
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
from attnscope.hf.intercepting.slots import Slot

FORBIDDING = -1e4  # additive masks use -1e4, finfo.min or -inf; exp of any of them is 0
_CHANGES_LOGITS = {
    "softcap": "caps its logits",
    "s_aux": "has learned sinks of its own",
    "position_bias": "adds a position bias to its logits",
    "head_mask": "masks whole heads",
    "cu_seq_lens_q": "packs several texts into one row",
    "cu_seq_lens_k": "packs several texts into one row",
}


@dataclass(frozen=True)
class Call:
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


def read_call(
    module: nn.Module, tensors: tuple[Tensor, Tensor, Tensor], mask: Any, asked: Mapping[str, Any], *, fused: bool
) -> Call:
    """`fused`: whether the model's implementation takes a missing mask and `is_causal` for causality, as torch does."""
    query, key, value = tensors
    for name, words in _CHANGES_LOGITS.items():
        if asked.get(name) is not None:
            raise RefusalError(
                f"{type(module).__name__} {words} ('{name}'), which another attention would lose: choose a variant of "
                "kind output, block or weights, or another model."
            )
    causal = False
    if mask is None and fused and query.shape[2] > 1:
        flag = asked.get("is_causal")
        causal = bool(getattr(module, "is_causal", True) if flag is None else flag)
    if causal and key.shape[2] > query.shape[2]:  # a cache with room ahead, filled from the front
        key, value = key[:, :, : query.shape[2]], value[:, :, : query.shape[2]]
    scale = asked.get("scaling")
    return Call(
        query=query,
        key=key,
        value=value,
        visible=_visible(module, mask, key.shape[2]),
        causal=causal,
        scale=query.shape[-1] ** -0.5 if scale is None else float(scale),
        dropout=float(asked.get("dropout") or 0.0),
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
        raise RefusalError(
            f"{type(module).__name__} adds a bias to its logits, which another attention would lose: choose a variant "
            "of kind output, block or weights, or another model."
        )
    return ~forbidden


# What a variant adds to one place of a model: a module without a forward, whose tensors move, train and are saved.
#
# It hangs below the module that it changes, under the variant's name (`layers.3.self_attn.attnscope_gated_output`), so
# that `parameters()`, `to()`, `state_dict()` and copies of the model take it along. Hooks and attention functions
# find it there and are plain functions of the module: a copy of the model computes with its own parts.


@dataclass
class SharedTensors:
    """Tensors on their way from one place of a forward pass to another; all parts of one installation share it."""

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
        self.recipe = recipe
        self.size = size
        self.settings = dict(settings)
        self.heads = heads
        self.role = role  # in a chain of places
        self.slot = slot  # where the tensor that it changes stands among several
        self.carried = SharedTensors() if carried is None else carried
        self.held: dict[str, Any] = {}  # of the call under way
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
        """Whether a norm below which this hangs is one still."""
        return self.recipe.variant == "layer_scaling"

    def extra_repr(self) -> str:
        heads = "" if self.heads is None else f", heads {list(self.heads)}"
        return f"{self.recipe.variant}{heads}"


def attach(changes: ExitStack, module: nn.Module, part: InstalledVariant) -> None:
    """The part below the module, under the variant's name."""
    name = f"{PREFIX}{part.recipe.variant}"
    module.add_module(name, part)
    changes.callback(module._modules.pop, name, None)


def variant_in(module: nn.Module) -> InstalledVariant | None:
    """What was put into this very module, if anything."""
    for name, child in module._modules.items():
        if name.startswith(PREFIX) and isinstance(child, InstalledVariant):
            return child
    return None


def installed_in(model: nn.Module) -> Iterator[tuple[str, InstalledVariant]]:
    """Every part of a model, with its path."""
    for path, module in model.named_modules():
        if isinstance(module, InstalledVariant):
            yield path, module


def recipe_of(model: nn.Module) -> Recipe | None:
    """What is installed in a model; None where nothing is."""
    return next((part.recipe for _, part in installed_in(model)), None)


def like(tensor: Tensor, module: nn.Module) -> Tensor:
    """On the device and in the precision of the module's own numbers."""
    weight = next((p for p in module.parameters() if p.is_floating_point()), None)
    if weight is None or not tensor.is_floating_point():
        return tensor
    return tensor.to(weight.device, weight.dtype)


def _is_drawn(name: str, drawn: Mapping[str, str]) -> bool:
    # mixed_heads has the tensors of its kinds under their names
    return name in drawn or any(
        name == f"{kind}_{one}" for kind, other in variants().items() for one in other.card.drawn
    )


def gated(model: nn.Module) -> bool:
    """Whether a gate on heads or values is installed anywhere in a model."""
    return any(isinstance(module, InstalledVariant) and "gate_weight" in module.arguments for module in model.modules())
