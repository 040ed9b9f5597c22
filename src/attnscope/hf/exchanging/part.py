"""What a variant adds to one place of a model: a module without a forward, whose tensors move, train and are saved along.

It hangs below the module that it changes, under the variant's name (`layers.3.self_attn.attnscope_gated_output`), so
that `parameters()`, `to()`, `state_dict()` and copies of the model take it along. Hooks and attention functions find it
there and are plain functions of the module: a copy of the model computes with its own parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from attnscope.core.registry import variants
from attnscope.core.variant import Size, Variant

PREFIX = "attnscope_"


@dataclass
class Carried:
    """Tensors on their way from one place of a forward pass to another; all parts of one installation share it."""

    tensors: dict[str, Any] = field(default_factory=dict)


class Part(nn.Module):
    """The tensors and settings of one variant at one place. `heads` are those it treats; None: all."""

    def __init__(
        self,
        variant: str,
        size: Size,
        begun: Mapping[str, Tensor],
        settings: Mapping[str, Any],
        *,
        heads: tuple[int, ...] | None = None,
        carried: Carried | None = None,
        role: str = "",
    ) -> None:
        super().__init__()
        self.variant_name = variant
        self.size = size
        self.settings = dict(settings)
        self.heads = heads
        self.role = role  # among several places of one block, or in a chain of blocks
        self.carried = Carried() if carried is None else carried
        self.held: dict[str, Any] = {}  # of the call under way
        drawn = variants()[variant].card.drawn
        for name, tensor in begun.items():
            if _is_drawn(name, drawn):
                self.register_buffer(name, tensor)
            else:
                self.register_parameter(name, nn.Parameter(tensor))

    @property
    def variant(self) -> Variant:
        return variants()[self.variant_name]

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of the variant's function: its tensors and its settings."""
        return {**self._parameters, **self._buffers, **self.settings}

    def extra_repr(self) -> str:
        heads = "" if self.heads is None else f", heads {list(self.heads)}"
        return f"{self.variant_name}{heads}"


def _is_drawn(name: str, drawn: Mapping[str, str]) -> bool:
    # mixed_heads has the tensors of its kinds under their names
    return name in drawn or any(
        name == f"{kind}_{one}" for kind, other in variants().items() for one in other.card.drawn
    )


def part_of(module: nn.Module) -> Part | None:
    """What was put into this very module, if anything."""
    for name, child in module._modules.items():
        if name.startswith(PREFIX) and isinstance(child, Part):
            return child
    return None


def parts_of(model: nn.Module) -> Iterator[tuple[str, Part]]:
    """Every part of a model, with its path."""
    for path, module in model.named_modules():
        if isinstance(module, Part):
            yield path, module


def like(tensor: Tensor, module: nn.Module) -> Tensor:
    """On the device and in the precision of the module's own numbers."""
    weight = next((p for p in module.parameters() if p.is_floating_point()), None)
    if weight is None or not tensor.is_floating_point():
        return tensor
    return tensor.to(weight.device, weight.dtype)
