"""What is to be done to a model, settled before anything is: variant, places, settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from torch import Tensor, nn

from attnscope.core.errors import RefusalError, nearest
from attnscope.core.registry import variants
from attnscope.core.variant import CALL, Size, Variant
from attnscope.hf.anatomy.anatomy import Anatomy, Block, Site, Stack
from attnscope.hf.exchanging.call import InstalledVariant, SharedTensors, like
from attnscope.hf.exchanging.recipe import Recipe
from attnscope.hf.intercepting.slots import Slot

# Settings of a variant, sorted: those its start takes, and those its function takes.

_OF_SIZE = frozenset(one.name for one in fields(Size))


def sorted_settings(variant: Variant, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(for the start, for the function); a word that neither knows is refused."""
    card = variant.card
    begins, takes = _keywords(variant.start), _keywords(variant.function)
    own = {*CALL, *card.parameters, *card.drawn, "seed"}
    known = sorted((begins | takes) - own - _OF_SIZE)
    anything = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(variant.function).parameters.values())
    for name in given:
        if name not in known and (not anything or card.kind == "weights"):
            said = nearest(name, known) if known else " It has none."
            raise RefusalError(f"{card.name} has no setting '{name}'.{said}")
        _refuse_unfit_settings(variant, name, given[name])
    start = {name: one for name, one in given.items() if name in begins}
    return start, {name: one for name, one in given.items() if name in takes or name not in begins}


def _refuse_unfit_settings(variant: Variant, name: str, value: Any) -> None:
    """A word where a number stands, or a word that is none of those that are known."""
    for function in (variant.start, variant.function):
        one = inspect.signature(function).parameters.get(name)
        if one is None:
            continue
        hint = get_type_hints(inspect.unwrap(function)).get(name)
        if get_origin(hint) is Literal and value not in get_args(hint):
            raise RefusalError(f"'{value}' is no {name} of {variant.card.name}: choose {' or '.join(get_args(hint))}.")
        number = isinstance(one.default, int | float) and not isinstance(one.default, bool)
        if number and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise RefusalError(f"{name} of {variant.card.name} is a number ({one.default} if not said), not '{value}'.")


def filled_from(variant: Variant, size: Size) -> dict[str, Any]:
    """Settings of the function that are called like a field of `Size`: the place says them."""
    named = inspect.signature(variant.function).parameters
    takes = variant.card.takes
    return {name: getattr(size, name) for name in named if name in _OF_SIZE and name not in takes}


def takes_seed(variant: Variant) -> bool:
    return "seed" in _keywords(variant.start)


def _keywords(function: Callable[..., Any]) -> set[str]:
    return {name for name, one in inspect.signature(function).parameters.items() if one.kind is one.KEYWORD_ONLY}


@dataclass(frozen=True)
class InstallPlan:
    """`start` are the settings of the variant's start, `calls` those of its function."""

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
                f"{self.found.model_class} has no blocks that pass a stream on, and {self.recipe.variant} stands on "
                "one: choose another model."
            )
        return stack

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The treated ones; a module that is several blocks (ALBERT) comes once."""
        mine = {block.path: block for block in reversed(self.stack.blocks) if block.layer in self.recipe.layers}
        return tuple(reversed(mine.values()))

    def size(self, site: Site) -> Size:
        """The place as the variant's start sees it: with the heads that are treated, and no others."""
        on_values = self.variant.card.takes[0] == "value"
        dim = site.value_dim if self.variant.card.kind == "output" else site.dim
        many, shared, heads = site.heads, site.kv_heads, self.recipe.heads
        if heads is not None:
            many, shared = (many, len(heads)) if on_values else (len(heads), len(heads))
        return Size(many, dim, self.stack.width, shared, len(self.stack.blocks), site.layer + 1)

    def begun(self, size: Size) -> dict[str, Tensor]:
        """The tensors to begin with; every block draws numbers of its own."""
        seeded = {"seed": self.recipe.seed * 10_007 + size.layer} if takes_seed(self.variant) else {}
        begun: dict[str, Tensor] = self.variant.start(size, **self.start, **seeded)
        return begun

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
        """For one place; a `silent` one has no tensors, and only helps others of its variant."""
        size = self.size(site)
        begun = {} if silent else self.begun(size)
        return InstalledVariant(
            self.recipe,
            size,
            {name: like(tensor, module) for name, tensor in begun.items()},
            {**filled_from(self.variant, size), **self.calls},
            heads=self.recipe.heads,
            carried=carried,
            role=role,
            slot=slot,
        )

    def site_of(self, block: Block) -> Site:
        return next(site for site in self.sites if site.layer == block.layer)
