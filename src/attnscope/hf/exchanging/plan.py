"""Decide what will be installed in a model (variant, sites, settings) before anything is changed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from torch import Tensor, nn

from attnscope.core.errors import RefusalError, nearest
from attnscope.core.registry import variants
from attnscope.core.variant import MASK, Size, Variant
from attnscope.hf.anatomy.anatomy import Anatomy, Block, Site, Stack
from attnscope.hf.exchanging.call import InstalledVariant, SharedTensors
from attnscope.hf.exchanging.recipe import Recipe
from attnscope.hf.intercepting.owners import Slot

_OF_SIZE = frozenset(each.name for each in fields(Size))


def sorted_settings(variant: Variant, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split settings into those of the variant's `start` and those of its function; refuse unknown names."""
    card = variant.card
    begins, takes = _keywords(variant.start), _keywords(variant.function)
    own = {*MASK, *card.parameters, *card.drawn, "seed"}
    known = sorted((begins | takes) - own - _OF_SIZE)
    anything = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(variant.function).parameters.values())
    for name in given:
        if name not in known and (not anything or card.kind == "weights"):
            hint = nearest(name, known) if known else " It has no settings."
            raise RefusalError(f"{card.name} has no setting '{name}'.{hint}")
        _refuse_unfit_setting(variant, name, given[name])
    start = {name: value for name, value in given.items() if name in begins}
    return start, {name: value for name, value in given.items() if name in takes or name not in begins}


def _refuse_unfit_setting(variant: Variant, name: str, value: Any) -> None:
    """Refuse a string where a number is needed, or an unknown choice."""
    for function in (variant.start, variant.function):
        parameter = inspect.signature(function).parameters.get(name)
        if parameter is None:
            continue
        hint = get_type_hints(inspect.unwrap(function)).get(name)
        if get_origin(hint) is Literal and value not in get_args(hint):
            raise RefusalError(
                f"{name} of {variant.card.name} cannot be '{value}': choose {' or '.join(get_args(hint))}."
            )
        default = parameter.default
        number = isinstance(default, int | float) and not isinstance(default, bool)
        if number and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise RefusalError(f"{name} of {variant.card.name} must be a number (default {default}), not '{value}'.")


def _keywords(function: Callable[..., Any]) -> set[str]:
    return {name for name, p in inspect.signature(function).parameters.items() if p.kind is p.KEYWORD_ONLY}


@dataclass(frozen=True)
class InstallPlan:
    """A planned installation. `start` are the settings of the variant's start, `calls` the settings of its function."""

    model: nn.Module
    found: Anatomy
    sites: tuple[Site, ...]
    recipe: Recipe
    start: Mapping[str, Any]
    calls: Mapping[str, Any]

    @property
    def variant(self) -> Variant:
        return variants()[self.recipe.variant]

    @property
    def stack(self) -> Stack:
        stack = self.found.stack(self.sites[0].stack)
        if stack is None:
            raise RefusalError(
                f"{self.recipe.variant} needs blocks with a residual stream, and {self.found.model_class} has none: "
                "choose another model."
            )
        return stack

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The treated blocks. A module that is used in several of them (ALBERT) is listed once."""
        mine = {block.path: block for block in reversed(self.stack.blocks) if block.layer in self.recipe.layers}
        return tuple(reversed(mine.values()))

    def size(self, site: Site) -> Size:
        """Return the sizes for the variant's start, counting only the treated heads."""
        on_values = self.variant.card.takes[0] == "value"
        dim = site.value_dim if self.variant.card.kind == "output" else site.dim
        many, shared, heads = site.heads, site.kv_heads, self.recipe.heads
        if heads is not None:
            many, shared = (many, len(heads)) if on_values else (len(heads), len(heads))
        return Size(many, dim, self.stack.width, shared, len(self.stack.blocks), site.layer + 1)

    def part(
        self,
        site: Site,
        module: nn.Module,
        *,
        silent: bool = False,
        carried: SharedTensors | None = None,
        role: str = "",
        slot: Slot = 0,
    ) -> InstalledVariant:
        """Make the variant for one site. A `silent` one has no tensors and only stores values for the others."""
        size, variant = self.size(site), self.variant
        begun: dict[str, Tensor] = {}
        if not silent:  # every block has its own seed
            seeded = {"seed": self.recipe.seed * 10_007 + size.layer} if "seed" in _keywords(variant.start) else {}
            begun = {name: _like(t, module) for name, t in variant.start(size, **self.start, **seeded).items()}
        named = inspect.signature(variant.function).parameters
        of_size = {n: getattr(size, n) for n in named if n in _OF_SIZE and n not in variant.card.takes}
        settings = {**of_size, **self.calls}
        heads = self.recipe.heads
        return InstalledVariant(self.recipe, size, begun, settings, heads=heads, carried=carried, role=role, slot=slot)

    def site_of(self, block: Block) -> Site:
        return next(site for site in self.sites if site.layer == block.layer)


def _like(tensor: Tensor, module: nn.Module) -> Tensor:
    """Move a tensor to the device and the precision of the module's parameters."""
    weight = next((p for p in module.parameters() if p.is_floating_point()), None)
    if weight is None or not tensor.is_floating_point():
        return tensor
    return tensor.to(weight.device, weight.dtype)
