"""A variant put into a model that transformers made: `exchange(changes, model, name, ...) -> Treated`.

Everything that is done is undone when `changes` is closed, in reverse order: parts, hooks, weights, registry entries,
the name of the attention implementation. A loader that wants a model to stay treated keeps `changes` open.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.core.registry import refuse_unknown_variant, variants
from attnscope.core.variant import Variant
from attnscope.hf.anatomy.anatomy import Site, anatomy
from attnscope.hf.anatomy.example import Batch, example_batch, run, same_chance
from attnscope.hf.exchanging.choosing import OF_ATTENTION, chosen_heads, chosen_sites
from attnscope.hf.exchanging.into_attention import into_attention
from attnscope.hf.exchanging.into_blocks import into_blocks
from attnscope.hf.exchanging.into_weights import into_weights
from attnscope.hf.exchanging.part import parts_of
from attnscope.hf.exchanging.plan import Plan
from attnscope.hf.exchanging.recipe import Recipe
from attnscope.hf.exchanging.settings import sorted_settings
from attnscope.hf.seeing.gradients import without_gradients
from attnscope.hf.seeing.intact import evaluating
from attnscope.hf.seeing.uncompiled import refuse_compiled

_LOOSE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 5e-3}


@dataclass(frozen=True)
class Treated:
    """A model with a variant in it: the same module object as before, for as long as the variant is installed."""

    model: nn.Module
    recipe: Recipe
    own_projections: tuple[str, ...]

    @property
    def variant(self) -> Variant:
        return variants()[self.recipe.variant]

    @property
    def layers(self) -> tuple[int, ...]:
        """Numbers of the treated blocks."""
        return self.recipe.layers

    @property
    def heads(self) -> tuple[int, ...] | None:
        """The treated heads of every such block; None: all."""
        return self.recipe.heads

    @property
    def settings(self) -> Mapping[str, Any]:
        return self.recipe.settings

    def parameters(self) -> dict[str, nn.Parameter]:
        """What the variant added, by the names under which the model has it."""
        return {f"{path}.{name}": one for path, part in parts_of(self.model) for name, one in part.named_parameters()}

    def buffers(self) -> dict[str, Tensor]:
        """What the variant added that is not trained: drawn numbers, and what follows the weights."""
        return {f"{path}.{name}": one for path, part in parts_of(self.model) for name, one in part.named_buffers()}

    def projections(self) -> dict[str, nn.Parameter]:
        """The model's own parameters nearest to it: queries, keys, values and output of the treated blocks."""
        named = dict(self.model.named_parameters())
        return {name: named[name] for name in self.own_projections}


def exchange(
    changes: ExitStack,
    model: nn.Module,
    name: str,
    *,
    layers: Iterable[int] | None = None,
    heads: Iterable[int] | None = None,
    seed: int = 0,
    stack: str | None = None,
    example_inputs: Batch | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Treated:
    """Put the variant in. Where this fails, closing `changes` leaves the model as it was."""
    refuse_unknown_variant(name)
    refuse_installed(model)
    refuse_compiled(model)
    variant = variants()[name]
    start, calls = sorted_settings(variant, settings or {})
    found = anatomy(model, example_inputs)
    sites = chosen_sites(model, found, variant, layers, stack)
    which = chosen_heads(found, variant, sites, heads)
    recipe = Recipe(
        variant=name,
        layers=tuple(dict.fromkeys(site.layer for site in sites)),
        heads=which,
        stack=sites[0].stack,
        seed=seed,
        settings=dict(settings or {}),
    )
    plan = Plan(model, found, sites, recipe, start, calls)
    if variant.card.takes in OF_ATTENTION:
        into_attention(changes, plan)
    elif variant.card.kind == "block":
        into_blocks(changes, plan)
    else:
        into_weights(changes, plan)
    if variant.card.takes == ("query", "key", "value"):
        _refuse_other_attention(model, variant, sites, example_inputs)
    return Treated(model, recipe, projections_of(model, sites))


def refuse_installed(model: nn.Module) -> None:
    there = next((part for _, part in parts_of(model)), None)
    if there is not None:
        raise RefusalError(
            f"{type(model).__name__} has {there.recipe.variant} installed already: leave that first (or give a copy of "
            "the model as it was), since two at once could not be told apart."
        )


def _refuse_other_attention(
    model: nn.Module, variant: Variant, sites: tuple[Site, ...], example_inputs: Batch | None
) -> None:
    """Is the model's attention softmax(scale q k) v, as its call says? If not, more would be lost than exchanged."""
    parts = [part for _, part in parts_of(model)]
    for part in parts:
        part.held["comparing"] = 0.0
    try:
        batch = example_batch(model) if example_inputs is None else example_inputs
        with evaluating(model), same_chance(model), without_gradients():
            run(model, batch)
        found = [part.held["comparing"] for part in parts]
    finally:
        for part in parts:
            part.held.clear()
    weight = next(p for p in model.parameters() if p.is_floating_point())
    if max(found) > _LOOSE.get(weight.dtype, 3e-2):
        site = sites[found.index(max(found))]
        raise RefusalError(
            f"The attention of {type(model).__name__} in block {site.layer} is not a softmax of scaled products that "
            f"its call describes (it differs by {max(found):.1e}), so {variant.card.name} would take away more than it "
            "exchanges: choose a variant of kind output, block or weights, or another model."
        )


def projections_of(model: nn.Module, sites: tuple[Site, ...]) -> tuple[str, ...]:
    """Names of the parameters that project queries, keys, values and outputs, with their biases."""
    named = dict(model.named_parameters())
    names: dict[str, None] = {}
    for site in sites:
        p = site.projections
        columns = [c.matrix for c in (p.query, p.key, p.value) if c is not None]
        for matrix in (*columns, *(() if p.output is None else (p.output,))):
            names[matrix.parameter] = None
            bias = f"{matrix.parameter.removesuffix('weight')}bias"
            if matrix.parameter.endswith("weight") and bias in named:
                names[bias] = None
    return tuple(names)
