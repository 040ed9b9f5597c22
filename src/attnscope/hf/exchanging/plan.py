"""What is to be done to a model, settled before anything is: variant, places, settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.core.registry import variants
from attnscope.core.variant import Size, Variant
from attnscope.hf.anatomy.anatomy import Anatomy, Block, Site, Stack
from attnscope.hf.exchanging.part import Carried, Part, like
from attnscope.hf.exchanging.recipe import Recipe
from attnscope.hf.exchanging.settings import filled_from, takes_seed
from attnscope.hf.seeing.tensors import Slot


@dataclass(frozen=True)
class Plan:
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
        carried: Carried | None = None,
        role: str = "",
        slot: Slot = 0,
    ) -> Part:
        """For one place; a `silent` one has no tensors, and only helps others of its variant."""
        size = self.size(site)
        begun = {} if silent else self.begun(size)
        return Part(
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
